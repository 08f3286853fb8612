"""A loopback stand-in for the W&B server: enough of its protocol for a real client to send runs to it.

It shows what a client sends, not what the web page makes of it. Answered: UpsertBucket, CreateRunFiles, Viewer and
RunResumeStatus of /graphql, and the file stream with history, summary and exit code. Everything else gets an empty answer.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STREAM = re.compile(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream")


class FakeWandb:
    """`with FakeWandb() as server:`, then WANDB_BASE_URL=server.url and any key of 40 characters.

    Attributes:
        runs: run id -> what UpsertBucket said of it: config, displayName, groupName, jobType, tags.
        rows: run id -> history rows in the order of their line numbers.
        exit_codes: run id -> exit code, once the run is complete.
        received: the bodies of all requests, as they came.
    """

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = defaultdict(dict)
        self.lines: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        self.exit_codes: dict[str, int] = {}
        self.received: list[bytes] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.received.append(self.path.encode() + body)
                if self.path == "/graphql":
                    self.answer(server.graphql(json.loads(body)))
                elif match := STREAM.match(self.path):
                    server.stream(match[3], json.loads(body))
                    self.answer({"exitcode": None, "limits": {}})
                else:
                    self.answer({})

            do_PUT = do_GET = do_POST

            def answer(self, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self) -> FakeWandb:
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def rows(self, run: str) -> list[dict[str, Any]]:
        return [self.lines[run][i] for i in sorted(self.lines[run])]

    def graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        query, given = request.get("query", ""), request.get("variables") or {}
        if "UpsertBucket" in query or "upsertBucket" in query:
            return {"data": {"upsertBucket": {"bucket": self.upsert(given), "inserted": True}}}
        if "CreateRunFiles" in query or "createRunFiles" in query:
            names = given.get("files") or []
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in names]
            return {"data": {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": files}}}
        if "viewer" in query.lower():
            viewer = {"id": "user", "entity": "team", "username": "user", "flags": "{}", "teams": {"edges": []}}
            return {"data": {"viewer": viewer, "serverInfo": {}}}
        if "RunResumeStatus" in query:
            return {"data": {"model": {"id": "project", "bucket": None}}}
        return {"data": {}}

    def upsert(self, given: dict[str, Any]) -> dict[str, Any]:
        run = given.get("name") or base64.b64encode(b"new").decode()
        self.runs[run].update({k: v for k, v in given.items() if v is not None})
        project = {"id": "project", "name": given.get("project") or "p", "entity": {"id": "team", "name": "team"}}
        return {"id": f"id-{run}", "name": run, "displayName": given.get("displayName") or run, "project": project}

    def config(self, run: str) -> dict[str, Any]:
        return {k: v["value"] for k, v in json.loads(self.runs[run]["config"]).items()}

    def stream(self, run: str, body: dict[str, Any]) -> None:
        history = (body.get("files") or {}).get("wandb-history.jsonl") or {"offset": 0, "content": []}
        for i, line in enumerate(history["content"], start=history["offset"]):
            self.lines[run][i] = json.loads(line)
        if body.get("complete"):
            self.exit_codes[run] = body["exitcode"]
