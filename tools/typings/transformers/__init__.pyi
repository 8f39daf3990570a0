"""The names of transformers that this codebase imports, each from its own module.

The package's own __init__ names every model in it, and pyright reads what it names: 2,600 files and 10 s of CPU for a
dozen classes. Add a name here when you import another one.
"""

from transformers.cache_utils import Cache as Cache
from transformers.cache_utils import DynamicCache as DynamicCache
from transformers.cache_utils import DynamicLayer as DynamicLayer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.auto.modeling_auto import (
    AutoModelForSequenceClassification as AutoModelForSequenceClassification,
)
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.models.bert.configuration_bert import BertConfig as BertConfig
from transformers.models.bert.modeling_bert import (
    BertForSequenceClassification as BertForSequenceClassification,
)
from transformers.models.gemma2.configuration_gemma2 import Gemma2Config as Gemma2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2ForCausalLM as Gemma2ForCausalLM
from transformers.models.gpt2.configuration_gpt2 import GPT2Config as GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel as GPT2LMHeadModel
from transformers.models.llama.configuration_llama import LlamaConfig as LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM as LlamaForCausalLM
from transformers.models.mistral.configuration_mistral import MistralConfig as MistralConfig
from transformers.models.mistral.modeling_mistral import MistralForCausalLM as MistralForCausalLM
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast as PreTrainedTokenizerFast
from transformers.trainer_callback import TrainerCallback as TrainerCallback
