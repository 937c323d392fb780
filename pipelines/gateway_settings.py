"""[iggy]: the gateway's address and credentials, for sources, sinks and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_whippet.options import decode
from pyspark_whippet.session import Session, session_of
from pyspark_whippet.settings import Access, Secret
from whippet.pipelines.keys import BOOLEAN, SECRET, STRING, key, table_of


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS to the gateway."""

    enabled: bool = key(BOOLEAN, "use HTTPS", False)
    ca_file: str | None = key(
        STRING, "certificate of the authority that has signed the gateway's certificate", None, shown="the system's"
    )


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """The gateway. The credentials may also be set in WHIPPET_TOKEN, or WHIPPET_USERNAME and WHIPPET_PASSWORD."""

    address: str = key(STRING, "host and port of its HTTP API, or several separated by commas", "localhost:3000")
    username: str | None = key(STRING, "the user", None)
    password: Secret | None = key(SECRET, "the user's password", None)
    token: Secret | None = key(SECRET, "a personal access token, instead of user and password", None)
    tls: Tls = key(table_of(Tls), "see below", Tls(), shown="")

    def __post_init__(self) -> None:
        decode(self._option_values)

    @property
    def _option_values(self) -> dict[str, str]:
        scheme = "https" if self.tls.enabled else "http"
        urls = (each if "://" in each else f"{scheme}://{each.strip()}" for each in self.address.split(","))
        found = {"url": ",".join(urls)}
        if self.tls.ca_file is not None:
            found["http.caFile"] = self.tls.ca_file
        if self.username is not None:
            found["username"] = self.username
        return found | _texts({"password": self.password, "token": self.token})

    @property
    def access(self) -> Access:
        """Includes what the environment sets; other Spark processes may have another environment."""
        return decode(self._option_values).access

    @property
    def resolved(self) -> GatewaySettings:
        """The same settings with the environment resolved, for processes with another environment."""
        access = self.access
        return replace(self, username=access.username, password=access.password, token=access.token)

    @property
    def options(self) -> dict[str, str]:
        """Options for the data source."""
        access = self.access
        name = {} if access.username is None else {"username": access.username}
        return self._option_values | name | _texts({"password": access.password, "token": access.token})

    @property
    def session(self) -> Session:
        """The session of this process and thread."""
        return session_of(self.access)


def _texts(secrets: Mapping[str, Secret | None]) -> dict[str, str]:
    return {name: secret.text for name, secret in secrets.items() if secret is not None}
