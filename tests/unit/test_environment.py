"""The Python environment is made with pip's own settings."""

from __future__ import annotations

import pytest

from dev import environment

PRINTED = """\
:env:.cert='/certificates/ours.pem'
:env:.disable-pip-version-check='1'
global.index-url='https://mirror.example/simple'
global.extra-index-url='\\nhttps://one.example/simple\\nhttps://two.example/simple'
install.find-links='/wheels /more/wheels'
global.proxy='http://proxy.example:3128'
global.timeout='180'
not a setting
global.trusted-host=broken'
"""


def test_uv_gets_the_index_and_certificates_that_pip_is_set_up_with() -> None:
    assert environment.uv_variables(PRINTED, {}) == {
        "SSL_CERT_FILE": "/certificates/ours.pem",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": "/wheels,/more/wheels",
        "ALL_PROXY": "http://proxy.example:3128",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_a_variable_of_the_users_own_stays() -> None:
    found = environment.uv_variables(PRINTED, {"UV_DEFAULT_INDEX": "https://own.example/simple"})
    assert "UV_DEFAULT_INDEX" not in found


def test_without_the_venv_module_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "run", lambda *_arguments, **_options: False)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(SystemExit, match=r"python3\.\d+-venv"):
        environment.make_venv()
