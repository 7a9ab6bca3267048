"""What FastAPI reads from a job: its parameters are the body's without the run, in the schema and in real requests."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from claimant import AsyncJob, AsyncRun, Claimant, Job, Outcome, Run

ran_on: list[threading.Thread] = []


def plain(run: Run, order_id: int, cents: int = 5) -> int:
    ran_on.append(threading.current_thread())
    return order_id * cents


async def awaited(run: AsyncRun, order_id: int, cents: int = 5) -> int:
    await asyncio.sleep(0)
    ran_on.append(threading.current_thread())
    return order_id * cents


@pytest.fixture(params=[plain, awaited], ids=["def", "async"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job[..., int] | AsyncJob[..., int]]:
    claims = Claimant(f"sqlite:{tmp_path}/leases.db", ledger=f"sqlite:{tmp_path}/ledger.db")
    yield claims.job("price", key=["order_id"], stake="rebuild")(request.param)
    asyncio.run(claims.aclose())


@pytest.fixture
def app(job: Job[..., int] | AsyncJob[..., int]) -> FastAPI:
    """The job as a route, and as what another route depends on."""
    app = FastAPI()
    app.post("/orders/{order_id}/price")(job)

    @app.post("/orders/{order_id}/told")
    def told(outcome: Annotated[Outcome[int], Depends(job)]) -> dict[str, Any]:
        return {"kind": outcome.kind, "value": outcome.value}

    return app


def post(app: FastAPI, path: str, **params: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            return await client.post(path, params=params)

    return asyncio.run(ask())


def test_the_schema_has_the_bodys_parameters_and_no_run(app: FastAPI) -> None:
    """The run is no query parameter, and nothing is asked for that a caller cannot give."""
    schema = app.openapi()
    assert set(schema["paths"]) == {"/orders/{order_id}/price", "/orders/{order_id}/told"}
    for methods in schema["paths"].values():
        route = methods["post"]
        asked = {(each["name"], each["in"], each["required"]) for each in route["parameters"]}
        assert asked == {("order_id", "path", True), ("cents", "query", False)}
        assert "requestBody" not in route
        assert {each["schema"]["type"] for each in route["parameters"]} == {"integer"}


def test_a_request_runs_the_body_with_its_values(
    app: FastAPI, job: Job[..., int] | AsyncJob[..., int]
) -> None:
    """Converted as the body's annotations say; an async body is awaited on the loop, a plain one runs on a thread beside it."""
    ran_on.clear()
    as_route = post(app, "/orders/7/price", cents="3", run="nonsense")
    assert as_route.status_code == 200
    assert (as_route.json()["kind"], as_route.json()["result"]) == ("ran", 21)
    assert post(app, "/orders/7/told").json() == {"kind": "ran", "value": 35}
    assert [on is threading.main_thread() for on in ran_on] == [isinstance(job, AsyncJob)] * 2


def test_a_value_that_does_not_fit_is_the_clients_mistake(app: FastAPI) -> None:
    """422 before anything is claimed."""
    ran_on.clear()
    assert post(app, "/orders/seven/price").status_code == 422
    assert post(app, "/orders/7/told", cents="much").status_code == 422
    assert not ran_on
