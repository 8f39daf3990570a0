import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.learner.ranks.tape import Tape
from tidegate.core.errors import RecordError
from tidegate.core.response import Response
from tidegate.learner.ranks.messages import DTYPES, Command, Restore, StopRanks, Update, Wait, receive, send

UPDATE = Update(
    number=7, response=Response(tier=6, weights=(0.5, 1.5)), values={"temperature": 0.7}, check=True
)


@pytest.mark.parametrize("command", [Wait(), StopRanks(), UPDATE, Restore(values={"steps": 3})])
def test_a_command_arrives_as_it_was_sent(command: Command) -> None:
    tape = Tape()
    send(tape.as_group(), command)
    tape.recorded = True
    assert receive(tape.as_group()) == (command, {})


@given(
    dtypes=st.lists(st.sampled_from(sorted(DTYPES)), min_size=1, max_size=6),
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=6, max_size=6),
    seed=st.integers(0, 99),
)
def test_tensors_of_any_type_and_shape_arrive_bit_for_bit(
    dtypes: list[str], shapes: list[list[int]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sent = {
        f"tensor {index}": (4 * torch.rand(shape, generator=generator)).to(DTYPES[dtype])
        for index, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=False))
    }
    tape = Tape()
    send(tape.as_group(), UPDATE, sent)
    tape.recorded = True
    command, arrived = receive(tape.as_group())
    assert command == UPDATE
    assert list(arrived) == list(sent)
    for name, tensor in arrived.items():
        assert tensor.dtype == sent[name].dtype
        assert torch.equal(tensor, sent[name])


def test_what_arrives_is_the_senders_no_more() -> None:
    tape, sent = Tape(), torch.ones(3)
    send(tape.as_group(), UPDATE, {"a": sent})
    sent.zero_()
    tape.recorded = True
    assert torch.equal(receive(tape.as_group())[1]["a"], torch.ones(3))


def test_a_type_that_no_rank_knows_is_refused() -> None:
    with pytest.raises(RecordError, match="complex64"):
        send(Tape().as_group(), UPDATE, {"a": torch.zeros(1, dtype=torch.complex64)})
