"""`claimant demo`: the main job in three acts, with real worker processes. Every figure is read, none is scripted."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from claimant import guards
from claimant._model.durations import in_words
from claimant._model.errors import ClaimantError, Refused
from claimant._model.names import job_key
from claimant.cli.demo_link import Link, link_to
from claimant.cli.demo_wallet import OPENING_CENTS, Wallet
from claimant.evidence import outage_cost
from claimant.ledger import init as init_ledger
from claimant.ledger import open_ledger
from claimant.stores import open_store

DURING, AFTERWARDS = range(301, 307), range(401, 441)
PATIENCE_S = 20.0
"""How long the demo waits for any one thing before it says that something is wrong."""

Say = Callable[[str], None]


class Worker:
    """A worker process. What it reports comes as dicts, in order."""

    def __init__(self, name: str, role: str, *arguments: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "claimant.cli.demo_worker", role, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def expect(self, at: str) -> dict[str, Any]:
        """What the worker says at this moment. Raises where it ends without having come there."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["at"] == at:
                return said
        raise ClaimantError(
            f"the demo's worker {self.name} ended (exit {self.process.wait()}) before it came to {at!r}"
        )

    def go(self) -> None:
        """Let a worker that waits go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Stop it if it still runs, and leave nothing of it behind."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Demo:
    """One performance: its own namespace, its own wallet, and nothing left behind."""

    def __init__(self, link: Link, ledger: str, wallet: Wallet, say: Say) -> None:
        self.link = link
        self.ledger_url = ledger
        self.wallet = wallet
        self.say = say
        self.namespace = f"demo-{secrets.token_hex(4)}"
        self.counted_before = self.counted()
        self.ledger = open_ledger(ledger, namespace=self.namespace)
        self.workers: list[Worker] = []

    def start(self, name: str, role: str, *orders: str) -> Worker:
        """Start a worker and wait until it is ready."""
        worker = Worker(name, role, self.link.url, self.ledger_url, self.wallet.url, self.namespace, *orders)
        self.workers.append(worker)
        worker.expect("ready")
        return worker

    def read(self, question: Callable[[Any], Any]) -> Any:
        """Ask the wallet's database."""
        with closing(self.wallet.connect()) as conn:
            return question(conn)

    def order(self, number: int) -> str:
        """An order of this performance: an operation is done once for ever, so the next one has orders of its own."""
        return f"{self.namespace}/{number}"

    def rejected(self) -> int:
        """Rejected attempts at debits since the demo began, counted by the guard in its own transactions."""
        return self.counted() - self.counted_before

    def counted(self) -> int:
        """All rejected attempts at debits in the wallet's database."""
        return sum(row.count for row in guards.rejections(self.wallet.url, job="debit-wallet"))

    def act_one(self) -> None:
        """Two workers, one slot: one run, one skip that says who holds."""
        self.say("\nAct one: two workers, one slot. A lease makes duplicate work rare.")
        first = self.start("A", "report")
        slot = first.expect("running")["slot"]
        self.say(f"  worker A  holds nightly-report and runs the slot {slot}")
        second = self.start("B", "report").expect("outcome")
        first.go()
        self.say(f"  worker B  {second['kind']}: {second['reason']}")
        done = first.expect("outcome")
        self.say(f"  worker A  {done['kind']}, claim {done['claim']}")
        late = self.start("C", "report").expect("outcome")
        self.say(f"  worker C  {late['kind']}: {late['reason']}")
        row = self.ledger.jobs("nightly-report")[0]
        self.say(f"  ledger    {row.runs} run, {row.skips_total} skip")

    def act_two(self) -> None:
        """The holder is paused past its deadline; both reach the debit; one lands."""
        self.say("\nAct two: the holder is paused past its deadline. A guard makes the duplicate harmless.")
        first = self.start("A", "paused", self.order(42))
        checked = first.expect("checked")
        self.say(
            f"  worker A  holds order 42, checks: {checked['remaining']:.1f} s left. About to debit 42.00 …"
        )
        os.kill(first.process.pid, signal.SIGSTOP)
        self.say(f"  worker A  is paused here (SIGSTOP, process {first.process.pid})")
        self._lapsed(job_key(self.namespace, "debit-wallet", f"order_id={self.order(42)}"))
        second = self.start("B", "debit", self.order(42))
        other = second.expect("outcome")
        self.say(
            f"  worker B  holds order 42 now, debits: {other['answers'][0]['kind']}, claim {other['claim']}"
        )
        os.kill(first.process.pid, signal.SIGCONT)
        first.go()
        woken = first.expect("outcome")
        self.say(f"  worker A  wakes and debits too: {woken['answers'][0]['kind']}, claim {woken['claim']}")
        if checked["remaining"] > 0 and other["claim"] == "kept":
            self.say(
                "            Both believed that they held it. Nothing told A before it acted; nothing could."
            )
        landed = self.read(self.wallet.debits).get(self.order(42), 0)
        self._expect(landed == 1, f"{landed} debits of order 42 landed")
        self.say(f"  database  debits of order 42: {landed}; balance {self._balance()}")
        self.say(f"  guard     attempts rejected and counted: {self.rejected()}")

    def _expect(self, kept: bool, otherwise: str) -> None:
        """The one thing that the demo does not merely show: a broken promise ends it as a failure."""
        if not kept:
            raise ClaimantError(
                f"the guard did not keep its promise: {otherwise}. This is a defect; please report it"
            )

    def _balance(self) -> str:
        cents = self.read(self.wallet.balance)
        return f"{cents / 100:.2f} of {OPENING_CENTS / 100:.2f}"

    def _lapsed(self, key: str) -> None:
        """Wait until the store has let the lease lapse, asking the store itself."""
        port = open_store(self.link.url).blocking()
        started = time.monotonic()
        try:
            while rows := [row for row in port.scan(key, _in_a_second()) if row.key == key]:
                left = rows[0].remaining_ms or 0
                self.say(f"  …         waiting for its lease to lapse: {in_words(left)} left")
                if time.monotonic() - started > PATIENCE_S:
                    raise ClaimantError(f"the lease {key} did not lapse within {PATIENCE_S:.0f} s")
                time.sleep(min(left / 1000 + 0.02, 0.7))
        finally:
            port.close()

    def act_three(self) -> None:
        """The store is taken away; work goes on without claims; what it cost is read back."""
        self.say("\nAct three: the lease store is taken away. Work goes on without claims.")
        orders = [self.order(number) for number in (*DURING, *AFTERWARDS)]
        pair = [self.start(name, "queue", *orders) for name in ("A", "B")]
        before = self.rejected()
        began = self.ledger.now()
        self.link.take()
        self.say(
            f"  store     does not answer from here on; {len(DURING)} orders arrive, each delivered to both workers"
        )
        slowest = 0.0
        for number in DURING:
            for worker in pair:
                worker.go()
            outcomes = [worker.expect("outcome") for worker in pair]
            slowest = max(slowest, *(outcome["took_ms"] for outcome in outcomes[-2:]))
            kinds = " and ".join(
                f"{worker.name} {outcome['answers'][0]['kind']}"
                for worker, outcome in zip(pair, outcomes, strict=True)
            )
            self.say(
                f"  order {number} {kinds} (claims: {', '.join(outcome['claim'] for outcome in outcomes)})"
            )
        cost = outage_cost(self.ledger, since=began)
        landed, balance = self.read(self.wallet.debits), self._balance()
        self.link.give()
        self.say("  store     is back")
        self._claims_again(pair[0])
        twice = sum(count > 1 for count in landed.values())
        missing = sum(self.order(number) not in landed for number in DURING)
        self._expect(twice == missing == 0, f"{twice} orders were debited twice and {missing} not at all")
        self.say(
            f"  cost      {cost.without_claim} starts without a claim, {self.rejected() - before} duplicate attempts rejected, "
            f"{in_words(cost.wasted_ms)} of work wasted,\n"
            f"            slowest start {in_words(slowest)}; second effects: {twice}; missing: {missing}; balance {balance}"
        )

    def _claims_again(self, worker: Worker) -> None:
        """Orders go on arriving; the worker probes about once a second, and claims once the store answers."""
        for number in AFTERWARDS:
            worker.go()
            outcome = worker.expect("outcome")
            self.say(f"  worker A  order {number}: {outcome['kind']}, claim {outcome['claim']}")
            if outcome["claim"] == "kept":
                return
            time.sleep(0.5)
        raise ClaimantError(
            f"the store is back, and worker {worker.name} did not notice in {len(AFTERWARDS) / 2:.0f} s"
        )

    def close(self) -> None:
        """End workers and connections."""
        for worker in self.workers:
            worker.end()
        self.link.close()
        self.ledger.close()


def _in_a_second() -> int:
    from claimant._drive import clock

    return clock.now_ms() + 1_000


@contextmanager
def _stage(store: str | None, ledger: str | None) -> Iterator[tuple[str, str, str]]:
    """URLs of store, ledger and wallet; what is not named is embedded, in a folder that ends with the demo."""
    with tempfile.TemporaryDirectory(prefix="claimant-demo-") as folder:
        files = Path(folder)
        where = ledger or f"sqlite:{files / 'ledger.db'}"
        wallet = where if where.startswith(("postgresql:", "postgres:")) else f"sqlite:{files / 'wallet.db'}"
        yield store or f"sqlite:{files / 'leases.db'}", where, wallet


def perform(store: str | None, ledger: str | None, say: Say) -> None:
    """All three acts. `store` and `ledger` are URLs; left out, embedded ones in a folder that ends with the demo.

    In databases that are named, the demo's own tables and the guard's rows go with it; the ledger keeps its record,
    under a namespace of the demo's own. Raises `Refused` where store and ledger do not fit together.
    """
    started = time.monotonic()
    with _stage(store, ledger) as (store_url, ledger_url, wallet_url):
        where, book = open_store(store_url), open_ledger(ledger_url)
        if book.host_local and not where.capabilities.host_local:
            raise Refused(
                "CLM050",
                f"a store that hosts share ({where.address}) needs a ledger that they share: add --ledger postgresql://…",
            )
        say(f"store {where.address}, ledger and wallet {book.address}; workers are real processes")
        init_ledger(ledger_url)
        guards.init(wallet_url)
        wallet = Wallet(wallet_url)
        with closing(wallet.connect()) as conn:
            wallet.create(conn)
        demo = Demo(link_to(store_url), ledger_url, wallet, say)
        try:
            demo.act_one()
            demo.act_two()
            demo.act_three()
        finally:
            demo.close()
            with closing(wallet.connect()) as conn:
                wallet.drop(conn, demo.namespace)
    say(
        f"\nThe lease saved cost: it made duplicates rare. The guard kept it correct: one effect, whatever the lease did. ({time.monotonic() - started:.0f} s)"
    )
