"""Mode `jwt`: claims name the caller, and every forged token gets the same 401."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from fixtures.issuer import AUDIENCE, HS256_SECRET, ISSUER, Issuer, claims
from threefold.errors import Forbidden, Unauthenticated, Unavailable
from threefold_server.local import LocalService

COMMON: dict[str, Any] = {
    "mode": "jwt",
    "embedder": "hash",
    "consolidate": False,
    "jwt_issuer": ISSUER,
    "jwt_audience": AUDIENCE,
}
LONG_AGO, FAR_AHEAD = 1_000_000_000, 9_000_000_000


@pytest.fixture
def trusting(issuer: Issuer, jwks_url: str) -> Iterator[LocalService]:
    """A service that trusts the issuer."""
    with LocalService(**COMMON, jwt_jwks_url=jwks_url, max_read_level="user", jwt_level_claim="level") as service:
        yield service


def answer(service: LocalService, token: str, **headers: str) -> httpx.Response:
    """Return the answer to a caller with this token."""
    with httpx.Client(base_url="http://threefold.local", transport=service.transport()) as client:
        return client.get("/v1/whoami", headers={"Authorization": f"Bearer {token}", **headers})


def test_claims_name_the_caller(trusting: LocalService, issuer: Issuer) -> None:
    with trusting.client(api_key=issuer.token(level="user")) as memory:
        who = memory.whoami()
        assert (who.user, who.agent, who.ceiling, who.mode) == ("ana", "support", "user", "jwt")
        assert (who.admin, who.may_share) == (False, False)
        memory.write("s1", [{"role": "user", "content": "the word is kumquat"}])
        assert memory.recall("kumquat").memories
    with trusting.client(api_key=issuer.token(sub="bob")) as memory:
        assert memory.recall("kumquat").memories == []


@pytest.mark.parametrize(("level", "ceiling"), [(None, "agent"), ("session", "session"), ("store", "user")])
def test_claim_sets_the_ceiling_up_to_that_of_the_store(
    trusting: LocalService, issuer: Issuer, level: str | None, ceiling: str
) -> None:
    assert answer(trusting, issuer.token(level=level)).json()["ceiling"] == ceiling


def test_invalid_ceiling_is_refused(trusting: LocalService, issuer: Issuer) -> None:
    assert answer(trusting, issuer.token(level="everything")).json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize("change", [{"sub": None}, {"client_id": None}, {"client_id": 7}, {"sub": "*"}, {"sub": " "}])
def test_token_without_a_valid_user_or_agent_is_refused(
    trusting: LocalService, issuer: Issuer, change: dict[str, Any]
) -> None:
    """Users reported that memory was written under the service account and never found by the user."""
    with trusting.client(api_key=issuer.token(**change)) as memory, pytest.raises(Forbidden, match="claim"):
        memory.whoami()


def test_header_cannot_name_another_user_or_agent(trusting: LocalService, issuer: Issuer) -> None:
    """Users reported that a user id in a header was enough to read the memory of anyone."""
    token = issuer.token()
    assert answer(trusting, token, **{"X-Threefold-User": "ana", "X-Threefold-Agent": "support"}).status_code == 200
    for header in ("X-Threefold-User", "X-Threefold-Agent"):
        assert answer(trusting, token, **{header: "bob"}).json()["error"]["code"] == "forbidden"


def test_nested_claims_are_mapped_and_can_give_admin_rights(issuer: Issuer, jwks_url: str) -> None:
    mapping = {
        "jwt_user_claim": "https://example.com/uid",
        "jwt_agent_claim": "act.sub",
        "jwt_admin": "realm_access.roles=memory-admin",
        "jwt_share": "scope=share",
    }
    with LocalService(**COMMON, **mapping, jwt_jwks_url=jwks_url, allow_self=True) as service:
        nested: dict[str, Any] = {"https://example.com/uid": "u-1", "act": {"sub": "planner"}}
        roles: dict[str, Any] = {"realm_access": {"roles": ["memory-admin"]}, "scope": "openid share"}
        who = answer(service, issuer.token(**nested, **roles)).json()
        assert (who["user"], who["agent"], who["admin"], who["may_share"]) == ("u-1", "planner", True, True)
        almost = issuer.token(act={"sub": "planner"}, realm_access={"roles": "memory-administrator"})
        who = answer(service, almost).json()
        assert (who["user"], who["agent"], who["admin"], who["may_share"]) == (None, "planner", False, False)


def b64(value: object) -> str:
    """Return a segment of a token."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def public_pem(issuer: Issuer) -> bytes:
    """Return the public key of the issuer."""
    key = issuer.private["first"].public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def signed_by_the_public_key(issuer: Issuer, header: dict[str, Any]) -> str:
    """Return a token for the key confusion attack: the public key is used as the HMAC secret."""
    signing = f"{b64({'typ': 'JWT', 'alg': 'HS256', **header})}.{b64(claims())}"
    return f"{signing}.{b64(hmac.new(public_pem(issuer), signing.encode(), hashlib.sha256).digest())}"


STRANGER = rsa.generate_private_key(65_537, 2_048)


def by_a_stranger(**header: Any) -> str:
    """Return a token signed with a key that was never published."""
    return jwt.encode(claims(), STRANGER, "RS256", header)


def stranger_jwk() -> dict[str, Any]:
    """Return the public key of the stranger as a header may contain it."""
    return RSAAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True)


def altered(issuer: Issuer) -> str:
    """Return a valid token with its claims replaced."""
    header, _, signature = issuer.token().split(".")
    return f"{header}.{b64(claims(sub='bob'))}.{signature}"


def signed(issuer: Issuer, payload: bytes) -> str:
    """Return any payload signed by the issuer."""
    return jwt.api_jws.encode(payload, issuer.private["first"], "RS256", {"kid": "first"})


TIMES = ("exp", "nbf", "iat")
NO_TIMES = [
    "Infinity",
    "-Infinity",
    "NaN",
    "1e400",
    "1e300",
    "9" * 400,
    "-1",
    "true",
    '"9000000000"',
    "null",
    "[]",
    "{}",
]
"""JSON values that are no valid times, although the parser of Python or PyJWT may accept them."""


def with_time(name: str, value: str, issuer: Issuer) -> str:
    """Return a token that is valid except for one of its times."""
    mark = 4_711_000_000
    return signed(issuer, json.dumps(claims(**{name: mark})).replace(str(mark), value).encode())


FORGED: dict[str, Callable[[Issuer], str]] = {
    "no token at all": lambda _: "x",
    "two segments": lambda issuer: issuer.token().rpartition(".")[0],
    "no signature": lambda issuer: issuer.token().rpartition(".")[0] + ".",
    "alg none": lambda _: f"{b64({'alg': 'none', 'kid': 'first'})}.{b64(claims())}.",
    "alg None": lambda _: f"{b64({'alg': 'None', 'kid': 'first'})}.{b64(claims())}.",
    "no alg": lambda _: f"{b64({'kid': 'first'})}.{b64(claims())}.{b64(b'x')}",
    "claims changed": altered,
    "wrong key": lambda _: by_a_stranger(kid="first"),
    "unknown key id": lambda _: by_a_stranger(kid="other"),
    "no key id": lambda _: by_a_stranger(),
    "key id is SQL": lambda _: by_a_stranger(kid="' UNION SELECT 'x"),
    "key id is a path": lambda _: by_a_stranger(kid="../../../../dev/null"),
    "key id is a URL": lambda _: by_a_stranger(kid="http://127.0.0.1:1/keys"),
    "key id is no text": lambda _: f"{b64({'alg': 'RS256', 'kid': {'$ne': 1}})}.{b64(claims())}.{b64(b'x')}",
    "jku": lambda _: by_a_stranger(kid="first", jku="http://127.0.0.1:1/keys"),
    "x5u": lambda _: by_a_stranger(kid="first", x5u="http://127.0.0.1:1/certificate"),
    "its own key": lambda _: by_a_stranger(kid="first", jwk=stranger_jwk()),
    "key confusion": lambda issuer: signed_by_the_public_key(issuer, {"kid": "first"}),
    "key confusion, no key id": lambda issuer: signed_by_the_public_key(issuer, {}),
    "algorithm not allowed": lambda issuer: jwt.encode(claims(), issuer.private["first"], "RS512", {"kid": "first"}),
    "unknown critical header": lambda issuer: issuer.token(headers={"crit": ["x"], "x": 1}),
    "expired": lambda issuer: issuer.token(exp=LONG_AGO),
    "without expiry": lambda issuer: issuer.token(exp=None),
    "expiry is text": lambda issuer: issuer.token(exp="never"),
    "not yet valid": lambda issuer: issuer.token(nbf=FAR_AHEAD),
    "issued in the future": lambda issuer: issuer.token(iat=FAR_AHEAD),
    "wrong issuer": lambda issuer: issuer.token(iss="https://issuer.example.evil"),
    "no issuer": lambda issuer: issuer.token(iss=None),
    "wrong audience": lambda issuer: issuer.token(aud="another service"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "oversized": lambda issuer: issuer.token(padding="x" * 20_000),
    "nested deeply": lambda _: f"{b64(b'[' * 5_000)}.{b64(claims())}.{b64(b'x')}",
    "claims nested deeply": lambda issuer: signed(issuer, b'{"exp": ' + b"[" * 6_000),
    **{f"{name} is {value!r}"[:40]: partial(with_time, name, value) for name in TIMES for value in NO_TIMES},
    "another critical header": lambda issuer: issuer.token(headers={"crit": ["b64"], "b64": True}),
    "empty critical header": lambda issuer: issuer.token(headers={"crit": []}),
    "critical header is no list": lambda issuer: issuer.token(headers={"crit": "exp"}),
    "claims are no object": lambda issuer: signed(issuer, b"[1]"),
    "claims are no JSON": lambda issuer: signed(issuer, b"{"),
}


@pytest.fixture(scope="module")
def forged_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalService, Issuer]]:
    """A service for the whole table, with its issuer."""
    issuer, path = Issuer(), tmp_path_factory.mktemp("issuer") / "keys.json"
    path.write_bytes(issuer.document)
    with LocalService(**COMMON, jwt_jwks_file=path) as service:
        yield service, issuer


@pytest.mark.parametrize("kind", FORGED)
def test_every_forged_token_gets_the_same_refusal(forged_at: tuple[LocalService, Issuer], kind: str) -> None:
    service, issuer = forged_at
    assert answer(service, issuer.token()).status_code == 200
    refused = answer(service, FORGED[kind](issuer))
    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert refused.json() == {
        "error": {
            "code": "unauthenticated",
            "message": "the token is not valid: expired, or not issued for this service",
            "details": {},
        }
    }


def test_small_clock_differences_are_accepted(trusting: LocalService, issuer: Issuer) -> None:
    now = int(time.time())
    assert answer(trusting, issuer.token(exp=now - 5, nbf=now + 5)).status_code == 200


def test_issuer_is_asked_once(trusting: LocalService, issuer: Issuer) -> None:
    for _ in range(3):
        assert answer(trusting, issuer.token()).status_code == 200
    assert issuer.asked == 1


def test_elliptic_curve_keys_are_supported(issuer: Issuer, trusting: LocalService) -> None:
    issuer.rotate("curve", elliptic=True)
    assert answer(trusting, issuer.token("curve")).status_code == 200
    assert answer(trusting, issuer.token("first")).status_code == 200


def test_outage_of_the_issuer_is_unavailable_and_not_unauthenticated(trusting: LocalService, issuer: Issuer) -> None:
    """With 503 instead of 401, clients keep their turns and send them when the issuer is back."""
    issuer.down = True
    with trusting.client(api_key=issuer.token()) as memory, pytest.raises(Unavailable, match="issuer"):
        memory.whoami()


def test_shared_secret_can_sign_tokens(tmp_path: Path) -> None:
    with LocalService(**COMMON, jwt_secret=HS256_SECRET) as service:
        good = jwt.encode(claims(), HS256_SECRET, "HS256")
        assert answer(service, good).json()["user"] == "ana"
        for bad in (
            jwt.encode(claims(), HS256_SECRET[::-1], "HS256"),
            jwt.encode(claims(), HS256_SECRET + HS256_SECRET, "HS512"),
            by_a_stranger(),
            f"{b64({'alg': 'none'})}.{b64(claims())}.",
        ):
            with service.client(api_key=bad) as memory, pytest.raises(Unauthenticated):
                memory.whoami()


def test_missing_token_is_refused_with_the_expected_scheme(trusting: LocalService) -> None:
    with trusting.client() as memory, pytest.raises(Unauthenticated, match="Bearer"):
        memory.whoami()
