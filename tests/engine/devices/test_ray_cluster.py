"""What is said when there is no Ray to talk to; nothing here starts one."""

import socket
import sys

import pytest

from headrace.engine.client.ray_cluster import RayCluster, RayNeeds
from headrace.errors import SettingsError


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"pip install 'headrace\[ray\]'"):
        RayCluster(None).enter()


@pytest.mark.slow  # imports Ray
@pytest.mark.filterwarnings("ignore")
def test_an_address_where_nobody_listens_is_refused_soon() -> None:
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(SettingsError, match=rf"ray_address is '{address}': .*refused"):
            RayCluster(address).enter()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_client_is_refused_by_name() -> None:
    pytest.importorskip("ray")
    with pytest.raises(SettingsError, match="Ray Client is not built"):
        RayCluster("ray://127.0.0.1:10001").enter()


def test_what_an_actor_does_not_need_is_not_reserved() -> None:
    assert RayNeeds(num_cpus=2).bundle == {"CPU": 2.0}
    assert RayNeeds(num_gpus=1).bundle == {"GPU": 1.0}
    assert RayNeeds().bundle == {}
