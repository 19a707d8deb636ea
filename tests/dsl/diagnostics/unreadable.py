from vortex import *


NAME = "café"  # <- file: these bytes are not UTF-8
