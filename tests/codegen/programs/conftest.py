"""Each of the programs, compiled, for every test that asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from shared.program_specs import PROGRAMS, built

from chunkform.codegen.programs.compiled import CompiledProgram


@pytest.fixture(params=list(PROGRAMS))
def program(request: pytest.FixtureRequest) -> tuple[CompiledProgram, Any]:
    return built(request.param)
