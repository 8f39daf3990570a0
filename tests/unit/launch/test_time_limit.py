from tidegate.launch.time_limit import TimeLimit


class Seconds:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_limit_counts_from_the_start_of_the_command_by_its_own_clock() -> None:
    clock = Seconds()
    limit = TimeLimit(60.0, elapsed_s=10.0, monotonic_s=clock)
    clock.now_s += 49.0
    assert not limit.is_reached()
    clock.now_s += 1.0
    assert limit.is_reached()


def test_clock_that_jumped_back_before_the_run_makes_no_limit_longer() -> None:
    clock = Seconds()
    limit = TimeLimit(60.0, elapsed_s=-3600.0, monotonic_s=clock)
    clock.now_s += 60.0
    assert limit.is_reached()


def test_run_without_a_limit_never_reaches_it() -> None:
    clock = Seconds()
    limit = TimeLimit(None, elapsed_s=0.0, monotonic_s=clock)
    clock.now_s += 1e9
    assert not limit.is_reached()
