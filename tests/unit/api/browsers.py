"""A browser without scripts: it keeps cookies, accepts pages, and sends their forms with tokens."""

import re

from starlette.testclient import TestClient

PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
TOKEN = re.compile(r'<input type="hidden" name="csrf_token" value="([0-9a-f]{128})">')


class Browser(TestClient):
    """Somebody's browser."""

    def __init__(self, app, *, scheme="http", address="192.0.2.1"):
        super().__init__(
            app,
            base_url=f"{scheme}://localhost",
            headers=PAGE,
            client=(address, 50000),
            follow_redirects=False,
            raise_server_exceptions=False,
        )

    def token(self, path):
        found = TOKEN.search(self.get(path).text)
        assert found
        return found[1]

    def submit(self, path, fields=None, *, page="/sign-in", **headers):
        given = {"csrf_token": self.token(page), **(fields or {})}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.post(path, data=given, headers=named)

    def sign_in(self, key, **fields):
        return self.submit("/sign-in", {"key": key, **fields})

    def session(self):
        found = {cookie.name: cookie.value for cookie in self.cookies.jar}
        return found.get("tuner_session") or found.get("__Host-tuner_session")
