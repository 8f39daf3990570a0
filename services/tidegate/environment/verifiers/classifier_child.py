"""The child process of a classifier: the only code of this package that loads torch, by way of transformers.

Usage: ``python -m tidegate.environment.verifiers.classifier_child FOLDER``. It writes ``{"ready": true, "labels":
[...]}`` or ``{"failed": "why"}``, then for each line ``{"text": ...}`` a line ``{"logits": {label: number}}`` or
``{"error": "why"}``, in order. It ends when its input does, and so with the worker that started it.
"""

import importlib
import os
import sys
from typing import Any, TextIO

import msgspec


def main() -> int:
    """Serve the folder named on the command line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries is no answer
    try:
        classify, labels = load(sys.argv[1])
    except (
        Exception
    ) as error:  # any error of the folder or a library is reported to the worker, which raises it
        send(answers, {"failed": repr(error)})
        return 1
    send(answers, {"ready": True, "labels": labels})
    for line in sys.stdin.buffer:
        try:
            text = msgspec.json.decode(line, type=dict[str, str])["text"]
            scores: list[dict[str, Any]] = classify(text)
            send(answers, {"logits": {str(item["label"]): float(item["score"]) for item in scores}})
        except Exception as error:  # a text that cannot be scored must not restart the child
            send(answers, {"error": repr(error)})
    return 0


def load(folder: str) -> tuple[Any, list[str]]:
    """A function from a text to its labels with their logits, and all labels. Runs no code of the folder."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    # The text is cut at the model's limit; tokenizers without a limit use the model's.
    length_max = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 1 << 20))

    def classify(text: str) -> Any:
        return pipeline(text, top_k=None, function_to_apply="none", truncation=True, max_length=length_max)

    return classify, [str(label) for label in model.config.id2label.values()]


def send(answers: TextIO, message: dict[str, Any]) -> None:
    """One line."""
    answers.write(msgspec.json.encode(message).decode() + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
