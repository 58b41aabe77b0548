"""Connections are let in by a token, and by nothing else."""

import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.engine.wire.token_socket import Door, DoorAddress, knock
from headrace.errors import EngineError

pytestmark = pytest.mark.integration


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door("127.0.0.1")
    yield door
    door.close()


def test_who_knows_the_token_is_let_in_with_its_number(door: Door) -> None:
    with knock(door.address, number=7, timeout_s=5.0) as there:
        admitted = door.admit(timeout_s=5.0)
        assert admitted is not None
        here, number = admitted
        with here:
            there.sendall(b"hello")
            assert (number, here.recv(5)) == (7, b"hello")


def test_a_wrong_token_is_hung_up_on_and_the_next_one_let_in(door: Door) -> None:
    stranger = DoorAddress(host=door.address.host, port=door.address.port, token=bytes(32))
    with knock(stranger, number=0, timeout_s=5.0) as outside, knock(door.address, number=1, timeout_s=5.0):
        admitted = door.admit(timeout_s=5.0)
        assert admitted is not None
        with admitted[0]:
            assert admitted[1] == 1
            outside.settimeout(5.0)
            assert outside.recv(1) == b""


def test_who_hangs_up_before_the_token_is_whole_holds_up_nobody(door: Door) -> None:
    with socket.create_connection((door.address.host, door.address.port)) as stranger:
        stranger.sendall(door.address.token[:10])
    with knock(door.address, number=1, timeout_s=5.0):
        admitted = door.admit(timeout_s=5.0)
        assert admitted is not None
        admitted[0].close()


def test_a_hello_in_pieces_is_understood(door: Door) -> None:
    with socket.create_connection((door.address.host, door.address.port)) as guest:
        guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = door.address.token + (5).to_bytes(4, "little")

        def say_in_pieces() -> None:
            for start in range(0, len(hello), 9):
                guest.sendall(hello[start : start + 9])

        speaker = threading.Thread(target=say_in_pieces)
        speaker.start()
        admitted = door.admit(timeout_s=5.0)
        speaker.join()
        assert admitted is not None
        assert admitted[1] == 5
        admitted[0].close()


def test_nobody_comes(door: Door) -> None:
    assert door.admit(timeout_s=0.01) is None


def test_a_closed_door_is_an_error_that_names_it(door: Door) -> None:
    address = door.address
    door.close()
    with pytest.raises(EngineError, match=f"cannot connect to 127.0.0.1:{address.port}"):
        knock(address, number=0, timeout_s=1.0)


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(EngineError, match=r"cannot listen at 198\.51\.100\.7"):
        Door("198.51.100.7")


def test_the_token_is_not_shown(door: Door) -> None:
    assert str(door.address.token) not in repr(door)
    assert repr(door.address) == f"DoorAddress(127.0.0.1:{door.address.port})"
