"""The suite: a test class for a store's test module.

    class TestPostgres(StoreSuite):
        @pytest.fixture
        def address(self, tmp_path) -> StoreAddress:
            return PostgresAddress(..., expiry_s=self.expiry_s)

The address has to lead to the same, at first empty, store whenever it is opened within one test. How a store
is added is shown in `docs/how-to/add-a-store.md`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fanfold.store.protocol import Store, StoreAddress
from fanfold.testing.stores.claims import ClaimTests
from fanfold.testing.stores.logs import LogTests, Open
from fanfold.testing.stores.ownership import OwnershipTests
from fanfold.testing.stores.records import RecordTests


class StoreSuite(LogTests, RecordTests, OwnershipTests, ClaimTests):
    """Everything that the rest of Fanfold relies on."""

    @pytest.fixture
    def address(self) -> StoreAddress:
        raise NotImplementedError("say where the store is")

    @pytest.fixture
    def open_store(self, address: StoreAddress) -> Iterator[Open]:
        opened: list[Store] = []

        def open_store() -> Store:
            opened.append(address.open())
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: Open) -> Store:
        return open_store()
