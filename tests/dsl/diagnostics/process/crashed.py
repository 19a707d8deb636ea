import os

from vortex import *

os._exit(1)
