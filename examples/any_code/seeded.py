"""Run a script that has no option for its seed: `python seeded.py SEED train.py ARGUMENTS`.

nanoGPT calls `torch.manual_seed(1337)`. This adds SEED to every such call, and seeds Python and NumPy as well.
"""

import random
import runpy
import sys

import numpy
import torch

seed = int(sys.argv[1])
sys.argv = sys.argv[2:]
set_seed = torch.manual_seed
torch.manual_seed = lambda number: set_seed(number + seed)
torch.manual_seed(0)
random.seed(seed)
numpy.random.seed(seed)
runpy.run_path(sys.argv[0], run_name="__main__")
