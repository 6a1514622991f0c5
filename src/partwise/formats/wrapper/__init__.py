"""Any model of ours as a model of `transformers`: `generate`, `Trainer`, PEFT and the Auto classes, for programs that
have partwise.

`import partwise.formats.wrapper` registers the classes, so that `AutoModelForCausalLM.from_pretrained(FOLDER)` finds
them. No code is written to a folder or run from one.
"""

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from partwise.formats.wrapper.base import AfterStep, PartwiseCache
from partwise.formats.wrapper.configuration import MODEL_TYPE, PartwiseConfig
from partwise.formats.wrapper.models import PartwiseForCausalLM, PartwiseForSeq2SeqLM, wrap

__all__ = ["AfterStep", "PartwiseCache", "PartwiseConfig", "PartwiseForCausalLM", "PartwiseForSeq2SeqLM", "wrap"]

AutoConfig.register(MODEL_TYPE, PartwiseConfig, exist_ok=True)
AutoModelForCausalLM.register(PartwiseConfig, PartwiseForCausalLM, exist_ok=True)
AutoModelForSeq2SeqLM.register(PartwiseConfig, PartwiseForSeq2SeqLM, exist_ok=True)
