"""What every handle must show before a guard may rest on it. Subclass a suite and give it a fixture `bench`.

`OwnedGuardSuite` is for what makes connections (engines, pools), `GuardSuite` for what can also be in a transaction.

    class TestMyEngine(GuardSuite):
        @pytest.fixture
        def bench(self): ...        # a claimant.testing.guard_bench.Bench
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from claimant._model.errors import ClaimantError, Refused
from claimant._model.outcome import AnswerKind
from claimant.guards import Said, rejections
from claimant.testing.guard_bench import Bench

APPLIED, DUPLICATE = AnswerKind.APPLIED, AnswerKind.DUPLICATE


class Oops(Exception):
    """A user's own error."""


def kinds(said: list[Said[Any] | BaseException]) -> list[str]:
    """The answers' kinds, sorted; errors by their type."""
    return sorted(one.answer.kind.value if isinstance(one, Said) else repr(one) for one in said)


class OwnedGuardSuite:
    """Properties of `once` where it opens its own transaction."""

    async def _owned(self, bench: Bench, guard: Any, effect: Any, run_id: str, **more: Any) -> Said[Any]:
        async with bench.idle() as handle:
            return await bench.attempt(guard, handle, effect, run_id=run_id, **more)

    @staticmethod
    def _counted(bench: Bench) -> dict[str, int]:
        tally: dict[str, int] = {}
        for row in rejections(bench.url):
            tally[row.cause] = tally.get(row.cause, 0) + row.count
        return tally

    # -- owned

    def test_first_attempt_is_applied(self, bench: Bench) -> None:
        """The first attempt runs the effect, commits it with its guard row, and gives its result."""
        said = bench.run(self._owned(bench, bench.guard(), bench.charge(), "run-1"))
        assert (said.answer.kind, said.answer.value, said.answer.replayed) == (APPLIED, "ok", False)
        assert not said.joined
        assert said.still_open is None
        assert (bench.notes(), bench.guard_rows(), self._counted(bench)) == (1, 1, {})

    def test_duplicate_replays_the_first_result_and_is_counted(self, bench: Bench) -> None:
        """A second attempt runs nothing, answers with the first result marked as replayed, and is counted once."""
        guard, result = bench.guard(), {"id": 7, "lines": ["a", "ü"]}

        async def scenario() -> Said[Any]:
            await self._owned(bench, guard, bench.charge(result=result), "run-1")
            return await self._owned(bench, guard, bench.charge(), "run-2")

        said = bench.run(scenario())
        assert (said.answer.kind, said.answer.value, said.answer.replayed) == (DUPLICATE, result, True)
        assert (bench.notes(), self._counted(bench)) == (1, {"duplicate": 1})
        [row] = rejections(bench.url, "debit-wallet")
        assert (row.job, row.stake, row.cause, row.hole) == (
            "debit-wallet",
            "money",
            "duplicate",
            "deadline passed",
        )
        assert abs(row.last_ms - time.time() * 1000) < 60_000

    def test_one_effect_among_many_at_once(self, bench: Bench) -> None:
        """Of N attempts at once exactly one has its effect, and exactly N - 1 rejections are counted."""
        guard, several = bench.guard(), 6

        async def scenario() -> list[Said[Any] | BaseException]:
            works = [
                (lambda at=at: self._owned(bench, guard, bench.charge(result=at), f"run-{at}"))
                for at in range(several)
            ]
            return await bench.together(*works)

        said = bench.run(scenario())
        assert kinds(said) == ["applied"] + ["duplicate"] * (several - 1)
        assert len({one.answer.value for one in said if isinstance(one, Said)}) == 1
        assert (bench.notes(), self._counted(bench)) == (1, {"duplicate": several - 1})

    def test_failing_effect_leaves_nothing(self, bench: Bench) -> None:
        """The effect's own error comes out unchanged, neither effect nor guard row stays, and the next attempt applies."""
        guard = bench.guard()

        async def fail(tx: Any) -> None:
            await bench.execute(tx, "INSERT INTO notes (text) VALUES ('half')")
            raise Oops("after the effect")

        async def scenario() -> Said[Any]:
            with pytest.raises(Oops, match="after the effect"):
                await self._owned(bench, guard, bench.effect(fail), "run-1")
            return await self._owned(bench, guard, bench.charge(), "run-2")

        assert bench.run(scenario()).answer.kind is APPLIED
        assert (bench.notes(), bench.guard_rows()) == (1, 1)

    def test_waiter_executes_when_the_first_rolls_back(self, bench: Bench) -> None:
        """A duplicate that waited for a first attempt which then failed is no duplicate: it runs the effect."""
        guard = bench.guard()

        async def scenario() -> list[Said[Any] | BaseException]:
            entered, fail = bench.gate(), bench.gate()

            async def body(tx: Any) -> None:
                await bench.execute(tx, "INSERT INTO notes (text) VALUES ('half')")
                entered.open()
                await fail.passed()
                raise Oops

            async def second() -> Said[Any]:
                await entered.passed()
                return await self._owned(bench, guard, bench.charge(), "run-2")

            async def release() -> Any:
                await entered.passed()
                await bench.until_blocked()
                fail.open()

            return await bench.together(
                lambda: self._owned(bench, guard, bench.effect(body), "run-1"), second, release
            )

        first, second, _ = bench.run(scenario())
        assert isinstance(first, Oops)
        assert isinstance(second, Said), second
        assert second.answer.kind is APPLIED
        assert (bench.notes(), bench.guard_rows()) == (1, 1)

    def test_other_values_are_a_mismatch(self, bench: Bench) -> None:
        """The same operation with another fingerprint is neither done nor called a duplicate; `.value` raises."""
        guard = bench.guard()

        async def scenario() -> Said[Any]:
            await self._owned(bench, guard, bench.charge(), "run-1", fingerprint=b"a" * 32)
            return await self._owned(bench, guard, bench.charge(), "run-2", fingerprint=b"b" * 32)

        said = bench.run(scenario())
        assert said.answer.kind is AnswerKind.MISMATCH
        with pytest.raises(Refused):
            _ = said.answer.value
        assert (bench.notes(), self._counted(bench)) == (1, {"mismatch": 1})

    def test_wait_for_a_first_that_does_not_end_is_bounded(self, bench: Bench) -> None:
        """While the first attempt runs on, the second is answered `in_flight` within the bound, having done nothing."""
        slow, quick = bench.guard(longest="60s"), bench.guard(longest="300ms")
        spans: list[float] = []

        async def scenario() -> list[Said[Any] | BaseException]:
            entered, end = bench.gate(), bench.gate()

            async def body(tx: Any) -> None:
                await bench.execute(tx, "INSERT INTO notes (text) VALUES ('slow')")
                entered.open()
                await end.passed()

            async def second() -> Said[Any]:
                await entered.passed()
                began = time.monotonic()
                try:
                    return await self._owned(bench, quick, bench.charge(), "run-2")
                finally:
                    spans.append(time.monotonic() - began)
                    end.open()

            return await bench.together(lambda: self._owned(bench, slow, bench.effect(body), "run-1"), second)

        said = bench.run(scenario())
        assert kinds(said) == ["applied", "in_flight"]
        assert 0.25 < spans[0] < 5
        assert bench.notes() == 1

    def test_own_row_is_applied_and_not_a_duplicate(self, bench: Bench) -> None:
        """An attempt that finds its own guard row (a retry after a lost reply) is told that it was applied."""
        guard = bench.guard()

        async def scenario() -> Said[Any]:
            await self._owned(bench, guard, bench.charge(), "run-1")
            return await self._owned(bench, guard, bench.charge(), "run-1")

        said = bench.run(scenario())
        assert (said.answer.kind, said.answer.value) == (APPLIED, "ok")
        assert (bench.notes(), self._counted(bench)) == (1, {})

    @pytest.mark.parametrize("result", [object(), {1: "int key"}, float("nan"), "x" * 70_000, {"s"}])
    def test_result_that_cannot_be_kept_is_no_error(self, bench: Bench, result: Any) -> None:
        """The effect counts although its result has no JSON form or is too long; the duplicate is told why it has none."""
        guard = bench.guard()

        async def scenario() -> tuple[Said[Any], Said[Any]]:
            return (
                await self._owned(bench, guard, bench.charge(result=result), "run-1"),
                await self._owned(bench, guard, bench.charge(), "run-2"),
            )

        first, second = bench.run(scenario())
        assert first.answer.kind is APPLIED
        assert first.answer.value is result
        assert (second.answer.kind, second.answer.value) == (DUPLICATE, None)
        assert first.answer.reason.startswith("result not kept")
        assert second.answer.reason == first.answer.reason
        assert bench.notes() == 1

    def test_commit_inside_the_effect_fails_loudly(self, bench: Bench) -> None:
        """An effect that commits by itself never passes for guarded."""
        guard = bench.guard()

        async def body(tx: Any) -> None:
            await bench.execute(tx, "INSERT INTO notes (text) VALUES ('before')")
            await bench.commit(tx)
            await bench.execute(tx, "INSERT INTO notes (text) VALUES ('after')")

        with pytest.raises((Refused, *bench.forbids_commit)) as caught:
            bench.run(self._owned(bench, guard, bench.effect(body), "run-1"))
        if isinstance(caught.value, Refused):
            assert caught.value.code == "CLM047"
            assert "the effect committed" in str(caught.value) or "the effect ended" in str(caught.value)
            assert bench.guard_rows() == 1
        else:
            assert bench.guard_rows() == 0
            assert bench.notes() == 0

    # -- the caller's own constraint

    def test_own_constraint_makes_a_counted_duplicate(self, bench: Bench) -> None:
        """With `constraint=`, work done before the guard existed is a duplicate, counted, and needs no guard row."""
        guard = bench.guard(constraint="one_debit")

        async def scenario() -> tuple[Said[Any], Said[Any]]:
            return (
                await self._owned(bench, guard, bench.debit(), "run-1"),
                await self._owned(bench, guard, bench.debit(), "run-2"),
            )

        first, second = bench.run(scenario())
        assert (first.answer.kind, second.answer.kind) == (APPLIED, DUPLICATE)
        assert (bench.debits(), self._counted(bench)) == (1, {"duplicate": 1})

    def test_another_violation_stays_what_it_is(self, bench: Bench) -> None:
        """With `constraint=` as without, a violation of anything else is the driver's own error and no duplicate."""
        declared, plain = bench.guard(constraint="one_debit"), bench.guard()

        async def scenario() -> None:
            with pytest.raises(Exception, match=r"(?i)check") as caught:
                await self._owned(bench, declared, bench.debit(amount=-1), "run-1")
            assert not isinstance(caught.value, ClaimantError)
            for run_id in ("run-2", "run-3"):
                receipt = bench.effect(
                    lambda tx: bench.execute(tx, "INSERT INTO receipts (number) VALUES (1)")
                )
                if run_id == "run-2":
                    await self._owned(bench, declared, receipt, run_id, order=7)
                    continue
                with pytest.raises(Exception, match=r"(?i)unique") as caught:
                    await self._owned(bench, declared, receipt, run_id, order=8)
                assert not isinstance(caught.value, ClaimantError)
            await self._owned(bench, plain, bench.debit(order=1), "run-2", order=1)
            with pytest.raises(Exception, match=r"(?i)unique") as caught:
                await self._owned(bench, plain, bench.debit(order=1), "run-3", order=2)
            assert not isinstance(caught.value, ClaimantError)

        bench.run(scenario())
        assert (bench.debits(), self._counted(bench)) == (1, {})

    @pytest.mark.parametrize("name", ["no_such_index", "plain_notes", "some_debits"])
    def test_unfit_constraint_is_refused(self, bench: Bench, name: str) -> None:
        """A constraint that is missing, not unique, or partial is refused before anything is done."""
        with pytest.raises(Refused, match="CLM049"):
            bench.run(self._owned(bench, bench.guard(constraint=name), bench.debit(), "run-1"))
        assert bench.debits() == 0


class GuardSuite(OwnedGuardSuite):
    """The same, and the properties of `once` inside the caller's transaction."""

    def test_joined_commits_with_the_caller(self, bench: Bench) -> None:
        """Inside the caller's transaction nothing is visible before the caller's commit, and all of it after."""
        guard = bench.guard()

        async def scenario() -> tuple[Said[Any], bool, bool]:
            async with bench.begun() as caller:
                said = await bench.attempt(guard, caller.handle, bench.charge(), run_id="run-1")
                assert said.still_open is not None
                before = said.still_open()
                seen = bench.notes()
                await caller.commit()
                return said, before and seen == 0, said.still_open()

        said, before, after = bench.run(scenario())
        assert (said.answer.kind, said.joined, before, after) == (APPLIED, True, True, False)
        assert (bench.notes(), bench.guard_rows()) == (1, 1)

    def test_joined_rolls_back_with_the_caller(self, bench: Bench) -> None:
        """The caller's rollback takes guard row and effect away together, and the next attempt applies."""
        guard = bench.guard()

        async def scenario() -> Said[Any]:
            async with bench.begun() as caller:
                said = await bench.attempt(guard, caller.handle, bench.charge(), run_id="run-1")
                await caller.rollback()
                assert said.still_open is not None
                assert not said.still_open()
            return await self._owned(bench, guard, bench.charge(), "run-2")

        assert bench.run(scenario()).answer.kind is APPLIED
        assert (bench.notes(), bench.guard_rows()) == (1, 1)

    def test_joined_duplicate_leaves_the_callers_work_alone(self, bench: Bench) -> None:
        """After a duplicate the caller's transaction goes on; the rejection is not written in it."""
        guard = bench.guard()

        async def scenario() -> Said[Any]:
            await self._owned(bench, guard, bench.charge(), "run-1")
            async with bench.begun() as caller:
                await bench.execute(caller.handle, "INSERT INTO notes (text) VALUES ('mine')")
                said = await bench.attempt(guard, caller.handle, bench.charge(), run_id="run-2")
                await bench.execute(caller.handle, "INSERT INTO notes (text) VALUES ('mine too')")
                await caller.commit()
                return said

        said = bench.run(scenario())
        assert (said.answer.kind, said.answer.value, said.joined) == (DUPLICATE, "ok", True)
        assert said.still_open is None
        assert (bench.notes(), self._counted(bench)) == (3, {})

    def test_joined_failure_leaves_the_callers_work_alone(self, bench: Bench) -> None:
        """After a failing effect, in the database too, the caller's transaction goes on without effect and guard row."""
        guard = bench.guard()

        async def scenario() -> None:
            async with bench.begun() as caller:
                await bench.execute(caller.handle, "INSERT INTO notes (text) VALUES ('mine')")
                with pytest.raises(Exception, match=r"(?i)check"):
                    await bench.attempt(guard, caller.handle, bench.debit(amount=-1), run_id="run-1")
                await bench.execute(caller.handle, "INSERT INTO notes (text) VALUES ('mine too')")
                await caller.commit()

        bench.run(scenario())
        assert (bench.notes(), bench.debits(), bench.guard_rows()) == (2, 0, 0)

    def test_joined_own_constraint(self, bench: Bench) -> None:
        """With `constraint=`, a joined duplicate leaves the caller's transaction usable."""
        guard = bench.guard(constraint="one_debit")

        async def scenario() -> Said[Any]:
            await self._owned(bench, guard, bench.debit(), "run-1")
            async with bench.begun() as caller:
                said = await bench.attempt(guard, caller.handle, bench.debit(), run_id="run-2")
                other = await bench.attempt(
                    guard, caller.handle, bench.debit(order=2), run_id="run-3", order=2
                )
                assert other.answer.kind is APPLIED
                assert other.still_open is not None
                assert other.still_open()
                await bench.execute(caller.handle, "INSERT INTO notes (text) VALUES ('mine')")
                await caller.commit()
                assert not other.still_open()
                return said

        assert bench.run(scenario()).answer.kind is DUPLICATE
        assert (bench.notes(), bench.debits()) == (1, 2)

    def test_joined_commit_inside_the_effect_fails_loudly(self, bench: Bench) -> None:
        """An effect that ends the caller's transaction never passes for guarded."""
        guard = bench.guard()

        async def body(tx: Any) -> None:
            await bench.execute(tx, "INSERT INTO notes (text) VALUES ('before')")
            await bench.commit(tx)

        async def scenario() -> BaseException:
            async with bench.begun() as caller:
                with pytest.raises((Refused, *bench.forbids_commit)) as caught:
                    await bench.attempt(guard, caller.handle, bench.effect(body), run_id="run-1")
                await caller.rollback()
                return caught.value

        error = bench.run(scenario())
        if isinstance(error, Refused):
            assert error.code == "CLM047"
