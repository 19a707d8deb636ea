"""The embedded engine: any Llama-, Qwen- or Mistral-like model of Transformers over a paged KV pool."""
