"""Calls with operands in L2: which are harvested, and that their repetitions share operands."""

import numpy as np
import pytest

from tileprof.harvest import resident
from tileprof.harvest.__main__ import FAMILIES
from tileprof.harvest.products import product_cases


@pytest.fixture(scope="module")
def products():
    return resident.PRODUCTS.cases()


def test_products_fit_into_half_of_l2_and_are_in_the_list_of_products(products):
    listed = {tuple(row) for row in product_cases.harvested(resident.CASES).tolist()}
    assert len(products) > 10_000
    assert {tuple(row) for row in products.tolist()} <= listed
    op, dtype, _, _, batch, m, n, k, _ = products[products[:, 0] == product_cases.Op.BMM].T
    size = np.array([4, 4, 2, 2])[dtype]
    assert (batch * (m * k + k * n + m * n) * size).max() <= resident.MOST_BYTES
    assert set(op.tolist()) == {product_cases.Op.BMM}


def test_a_call_runs_once_and_repeats_with_the_same_operands():
    operands = []

    class Inner:
        name, columns = "calls", ("size",)

        def calls(self, case):
            return [lambda place=place: operands.append((case, place)) for place in range(3)]

    family = resident.Resident(Inner())
    calls = family.calls((5,))
    assert operands == [((5,), 0)]
    for call in calls:
        call()
    assert set(operands) == {((5,), 0)}


def test_families_of_the_command_have_the_names_that_it_is_given(products):
    for name in ("resident_products", "resident_convolutions"):
        module, attribute = FAMILIES[name]
        assert module == resident.__name__
        assert getattr(resident, attribute).name == name
