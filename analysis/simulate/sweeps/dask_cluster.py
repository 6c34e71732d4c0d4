"""Jobs on a Dask cluster: one that runs already, or one of processes on this machine (`pip install distributed`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL = ""
"""The address that means processes on this machine."""

CONNECT_S = 10.0
WORKERS_S = 30.0
_DEATHS = 1
"""A job that ends its local worker this many times is given up."""

J = TypeVar("J")
R = TypeVar("R")


def on_dask(address: str, work: Callable[[J], R], jobs: Sequence[J]) -> list[R]:
    """Return ``[work(job) for job in jobs]``, each on some worker. ``work`` and its jobs must be importable there, and
    files that they read must be visible there under the same path.

    Raises UserError where Dask is not installed, nothing answers at the address within `CONNECT_S` seconds, no worker
    is there within `WORKERS_S`, or a worker dies of a job; what ``work`` raises is raised here.
    """
    try:
        import distributed  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise UserError("--dask needs Dask, which is not installed; type: pip install distributed") from None
    with _client(distributed, address, len(jobs)) as client:
        try:
            client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError:
            raise UserError(
                f"the Dask scheduler at {_address_text(address)} has had no worker for {WORKERS_S:g} s; start one: "
                f"dask worker {address}"
            ) from None
        futures = client.map(work, jobs, pure=False)
        try:
            return list(client.gather(futures))
        except distributed.scheduler.KilledWorker as died:
            raise UserError(
                f"workers of the Dask cluster at {_address_text(address)} died while they simulated ({died.task}): "
                "out of memory, or ended by another program; give them more memory, or simulate fewer points"
            ) from None
        except (CancelledError, distributed.comm.CommClosedError) as lost:
            raise UserError(
                f"the Dask cluster at {_address_text(address)} was lost during the simulation: {lost}"
            ) from None


def _address_text(address: str) -> str:
    return address or "this machine"


@contextmanager
def _client(distributed: Any, address: str, jobs: int) -> Iterator[Any]:
    if address:
        client = _client_at(distributed, address)
        with client:
            yield client
        return
    import dask  # noqa: PLC0415 - an optional dependency

    count = max(1, min(os.cpu_count() or 1, jobs))
    options = {"distributed.scheduler.allowed-failures": _DEATHS, "distributed.admin.log-length": 0}
    with dask.config.set(options):
        cluster = distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, dashboard_address="127.0.0.1:0", memory_limit=0, silence_logs=50
        )
        try:
            with distributed.Client(cluster) as client:
                yield client
        finally:
            with suppress(AssertionError):  # Dask cannot join a worker that it is just starting in a dead one's place
                cluster.close()


def _client_at(distributed: Any, address: str) -> Any:
    """Return a client of the scheduler at the address, which has said who it is.

    Whatever goes wrong while connecting is the address's fault: what answers there may be no Dask at all, and answer
    anything.
    """
    try:
        _introduce(distributed, address)
        return distributed.Client(address, timeout=CONNECT_S)
    except Exception as refused:  # noqa: BLE001 - see above
        raise UserError(
            f"no Dask scheduler answers at {address} within {CONNECT_S:g} s ({type(refused).__name__}); start one with "
            "`dask scheduler`, or give "
            "--dask without an address to use this machine"
        ) from None


def _introduce(distributed: Any, address: str) -> None:
    """Ask the scheduler who it is, in `CONNECT_S` seconds: Dask itself waits for the answer to its greeting forever.

    The thread is a daemon with a loop of its own, so neither a loop that runs here already nor a peer that says nothing
    holds anything up.
    """
    failed: list[BaseException] = [TimeoutError()]

    async def ask() -> None:
        async with distributed.rpc(address) as peer:
            await peer.identity()

    async def bounded() -> None:
        await asyncio.wait_for(ask(), CONNECT_S)

    def talk() -> None:
        try:
            asyncio.run(bounded())
            failed.clear()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            failed[:] = [error]

    thread = Thread(target=talk, daemon=True)
    thread.start()
    thread.join(CONNECT_S + 1)
    if failed:
        raise failed[0]
