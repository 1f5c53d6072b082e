"""``tuner mcp``: tools for agents, asked by the protocol's own client over a process's pipes."""

import asyncio
import json
import os
import sys

import pytest

from tests.models import TINY
from tuner.store import open_store


@pytest.fixture
def agent(make_database, tmp_path):
    """Calls tools one after another in one process; gives each one's result."""
    from mcp import Client, StdioServerParameters  # a second, which no other test needs

    url = make_database(tmp_path / "studies.db")

    def ask(*calls):
        async def run():
            run_it = "import sys; from tuner.cli import main; sys.exit(main())"
            argv = ["-P", "-c", run_it, "mcp", "--db", url]
            environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
            server = StdioServerParameters(command=sys.executable, args=argv, env=environment)
            async with Client(server, read_timeout_seconds=300) as client:
                tools = {one.name: one for one in (await client.list_tools()).tools}
                return tools, [await client.call_tool(name, given) for name, given in calls]

        return asyncio.run(run())

    ask.url = url
    return ask


@pytest.mark.slow
def test_an_agent_finds_tools_with_types_and_gets_short_answers(agent, tmp_path):
    model = tmp_path / "config.json"
    model.write_text(json.dumps(TINY))
    asked = {
        "model": str(model),
        "cluster": "2xa100-80gb",
        "global_batch_size": 16,
        "sequence_length": 32,
    }
    file = tmp_path / "args.json"
    file.write_text(
        json.dumps(
            {
                "output_dir": "x",
                "per_device_train_batch_size": 2,
                "bf16": True,
                "gradient_accumulation_steps": 4,
            }
        )
    )
    beside = {"file": str(file), "cluster": "2xa100-80gb", "model": str(model)}
    of_file = {"from_file": file.read_text(), "cluster": "2xa100-80gb", "model": str(model)}
    of_file |= {"sequence_length": 32, "framework": "trainer"}
    settings = {"settings": "sharding=full_shard,micro_batch_size=2"}
    tools, found = agent(
        ("predict", {**asked, **settings}),
        ("size", {**asked, "cluster": ["2xa100-80gb", "2xh100-80gb"], "price_per_gpu_hour": 2}),
        ("check", {**beside, "sequence_length": 32}),
        ("studies", {}),
        ("suggest", {**asked, "max_probes": 1}),
        ("studies", {"state": "done"}),
        ("predict", {**asked, "settings": "sharding=none"}),
        ("predict", {**asked, **settings, "global_batch_size": "many"}),
        ("suggest", {**of_file, "max_probes": 1}),
    )
    assert set(tools) == {"suggest", "predict", "check", "size", "studies"}
    schema = tools["suggest"].input_schema
    assert schema["properties"]["global_batch_size"]["anyOf"][0]["type"] == "integer"
    assert schema["required"] == ["cluster"]
    assert all(len(one.content[0].text) < 3000 for one in found)
    predicted, sized, checked, none, suggested, listed, wrong, mistyped, filed = found
    assert predicted.structured_content["fits"] is True
    assert predicted.structured_content["provenance"] == "predicted"
    rows = sized.structured_content["rows"]
    assert {row["cluster"] for row in rows} == {"2xa100-80gb", "2xh100-80gb"}
    assert rows[0]["fewest"]["cost_per_billion_tokens"] > 0
    assert checked.structured_content["format"] == "trainer"
    assert checked.structured_content["fits"] is True
    assert none.structured_content == {"studies": []}
    answer = suggested.structured_content
    assert answer["settings"]["micro_batch_size"] >= 1
    assert (answer["provenance"], answer["launch"][0]) == ("predicted", "torchrun")
    assert listed.structured_content["studies"][0]["study_id"] == answer["study_id"]
    assert wrong.is_error
    assert "sharding: got 'none'" in wrong.content[0].text
    assert mistyped.is_error
    with open_store(agent.url) as store:
        kept = {one.id for one in store.studies()}
    assert kept == {answer["study_id"], filed.structured_content["study_id"]}
    made = filed.structured_content["settings"]
    assert 2 * made["micro_batch_size"] * made["gradient_accumulation_steps"] == 16
