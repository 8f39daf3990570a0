"""How conversations with a pretrained model are written: a part of the run file's ``policy``."""

from typing import Annotated

import msgspec

from tidegate.core.errors import ConfigError


class ChatConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How conversations are written for a model with a chat template, in training, evaluation and behind the gateway.

    ``system_prompt``: the first message of each conversation that does not begin with a system message of its own.
    ``template_args``: further arguments of the template, such as ``enable_thinking: false``.
    """

    system_prompt: Annotated[str, msgspec.Meta(max_length=65_536)] = ""
    template_args: dict[str, str | bool | int | float | None] = {}

    def __post_init__(self) -> None:
        """Refuse arguments that are the platform's.

        Raises:
            ConfigError: one of them is.
        """
        wrong = sorted(_TEMPLATE_ARGS_TAKEN & self.template_args.keys())
        if wrong:
            raise ConfigError(
                f"policy.chat.template_args has {', '.join(wrong)}",
                why="the platform sets it for each conversation",
                fix="remove it",
            )


# Arguments of ``apply_chat_template`` itself.
_TEMPLATE_ARGS_TAKEN = {
    "conversation",
    "messages",
    "tools",
    "documents",
    "chat_template",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
}
