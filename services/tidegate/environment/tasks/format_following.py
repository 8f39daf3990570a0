"""Instructions for the form of an answer that a program can verify: word counts, bullets, JSON keys, upper case...

A problem is a topic and one to three rules that can be kept together: a shape (how many words, lines, sentences) and
what the letters and words must be. Its ``answer`` holds the rules as JSON. The content does not matter: a judge can
score that.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import cycle, islice, pairwise

import msgspec

from tidegate.environment.tasks.format_rules import FormatRule, holds, sentence
from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import repeated, split_of

NUM_DRAWN = 8_000
DRAW_SEED = 1105
# Reward of the share of kept rules while one is broken.
PARTIAL_WEIGHT = 0.5

TOPICS = (
    "the sea", "a winter morning", "bread", "trains", "an old map", "bees", "the moon", "a lighthouse", "chess",
    "gardens", "rivers", "a small town", "clocks", "mountains", "tea", "the wind", "libraries", "bridges", "rain",
    "apples", "night shifts", "paper", "music lessons", "ferries", "snow",
)  # fmt: skip
WORDS = ("stone", "light", "hand", "green", "early", "north", "glass", "bell", "salt", "road", "leaf", "warm")
JSON_KEYS = ("title", "summary", "place", "mood", "author", "question")
FILLER = ("we", "often", "think", "about", "this", "and", "then", "rest", "by", "open", "water")
SHAPES = ("words", "bullets", "numbered", "sentences", "paragraphs", "json_keys")
LETTERS = ("upper", "lower")
RULES_MAX = 3


class FormatFollowing:
    """The task. Its curriculum bin is the number of rules: ``rules-1`` to ``rules-3``."""

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        return split_of(_drawn(), split, seed=seed)

    def score(self, problem: Problem, completion: str) -> Score:
        """1 when every rule is kept, else half of the share that is. Components: ``exact``, and each rule's kind."""
        rules = msgspec.json.decode(problem.answer, type=tuple[FormatRule, ...])
        kept = {rule.kind: holds(rule, completion) for rule in rules}
        broken = [kind for kind, fine in kept.items() if not fine]
        share = sum(kept.values()) / len(kept)
        return Score(
            reward=PARTIAL_WEIGHT * share if broken else 1.0,
            components={"exact": float(not broken)} | {kind: float(fine) for kind, fine in kept.items()},
            log=f"broken: {', '.join(broken)}" if broken else "solved",
        )

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """A text that keeps the rules of each of ``count`` training problems; it does not treat their topics."""
        problems = repeated(self.problems("train", seed=seed), count=count)
        return [Demonstration(prompt=problem.prompt, completion=obedient(problem)) for problem in problems]


def obedient(problem: Problem) -> str:
    """A text that keeps all rules of a problem."""
    rules = {rule.kind: rule for rule in msgspec.json.decode(problem.answer, type=tuple[FormatRule, ...])}
    shape = rules.get("words") or next(
        (rules[kind] for kind in SHAPES if kind in rules), FormatRule("sentences", 1)
    )
    first, last, mention = rules.get("first_word"), rules.get("last_word"), rules.get("mention")
    named = [mention.words[0]] * mention.count if mention else []
    edges = [rule.words[0] for rule in (first, last) if rule]
    num_words = (
        shape.count if shape.kind == "words" else 2 * max(shape.count, len(shape.words), 1) + len(named)
    )
    filler = list(islice(cycle(FILLER), num_words - len(named) - len(edges)))
    words = [*filler, *named]
    if first:
        words.insert(0, first.words[0])
    if last:
        words.append(last.words[0])
    text = _shaped(words, shape)
    return text.upper() if "upper" in rules else text


def _shaped(words: Sequence[str], shape: FormatRule) -> str:
    """The words in a shape, in their order."""
    if shape.kind == "words":
        return " ".join(words)
    num_parts = shape.count or len(shape.words)
    cuts = [index * len(words) // num_parts for index in range(num_parts + 1)]
    parts = [" ".join(words[start:stop]) for start, stop in pairwise(cuts)]
    match shape.kind:
        case "bullets":
            return "\n".join(f"- {part}" for part in parts)
        case "numbered":
            return "\n".join(f"{1 + index}. {part}" for index, part in enumerate(parts))
        case "sentences":
            return " ".join(f"{part}." for part in parts)
        case "paragraphs":
            return "\n***\n".join(parts)
        case _:
            return msgspec.json.encode(dict(zip(shape.words, parts, strict=True))).decode()


@lru_cache(maxsize=1)
def _drawn() -> tuple[Problem, ...]:
    """Every problem, kept for as long as the process lives: a session that names none draws one of them."""
    return tuple(islice(_draws(), NUM_DRAWN))


def _draws() -> Iterator[Problem]:
    rng = random.Random(DRAW_SEED)
    while True:
        rules = _rules(rng)
        topic = rng.choice(TOPICS)
        prompt = " ".join([f"Write about {topic}.", *(sentence(rule) for rule in rules)])
        yield Problem(
            prompt_id=prompt,
            prompt=prompt,
            answer=msgspec.json.encode(rules).decode(),
            bin=f"rules-{len(rules)}",
        )


def _rules(rng: random.Random) -> list[FormatRule]:
    """One to three rules of which none contradicts another."""
    shape = _shape(rng)
    word, edge = rng.sample(WORDS, 2)
    others = [FormatRule("mention", count=rng.randint(1, 2), words=(word,))]
    # A JSON object has lower-case keys, commas and a fixed first word; numbers begin numbered lists.
    if shape.kind != "json_keys":
        others += [FormatRule(rng.choice(LETTERS)), FormatRule("no_commas")]
        others.append(FormatRule("last_word", words=(edge,)))
        if shape.kind != "numbered":
            others[-1] = FormatRule(rng.choice(("first_word", "last_word")), words=(edge,))
    num_others = rng.randint(0, min(RULES_MAX - 1, len(others)))
    return [shape, *rng.sample(others, num_others)]


def _shape(rng: random.Random) -> FormatRule:
    match kind := rng.choice(SHAPES):
        case "words":
            return FormatRule(kind, count=rng.randint(5, 40))
        case "json_keys":
            return FormatRule(kind, words=tuple(rng.sample(JSON_KEYS, rng.randint(2, 4))))
        case "paragraphs":
            return FormatRule(kind, count=rng.randint(2, 4))
        case _:
            return FormatRule(kind, count=rng.randint(2, 7))
