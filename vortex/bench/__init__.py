"""What a decode step reads, and what it takes."""
