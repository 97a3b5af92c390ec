"""A bucket of Google Cloud Storage on this machine: gcsfs and tensorstore take it for the real one.

It has what an object store has and a disk has not: objects appear whole or not at all, cannot be
appended to or renamed, and there are no directories. It lives in the test's process, so what a
killed run has written stays.
"""

import base64
import hashlib
import http.server
import itertools
import json
import re
import sys
import threading
import urllib.parse

import google_crc32c

import serving

NAME = "bucket"
OBJECT = re.compile(r"(?:/download|/upload)?/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?")


class Bucket(http.server.ThreadingHTTPServer):
    """The server; `objects` are what it holds, `requests` what was asked of it."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("localhost", 0), _Handler)
        self.objects = {}  # name: (bytes, generation)
        self.requests = []
        self.uploads = {}  # of objects in parts, which appear with the last one: id: (name, parts)
        self.failing = lambda method, name: 0  # an HTTP status to answer with instead
        self.lock, self.generations = threading.RLock(), itertools.count(1)

    def handle_error(self, request, client_address):
        """Says nothing of clients that went away: killed ones, and requests no longer needed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self):
        """Where it listens."""
        return f"http://localhost:{self.server_port}"

    @property
    def environment(self):
        """The variables that send a process here."""
        return {
            "STORAGE_EMULATOR_HOST": self.address,
            "TENSORSTORE_GCS_HTTP_URL": self.address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "FSSPEC_GCS_TOKEN": "anon",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # it asks Google what kind of bucket
            "GCE_METADATA_HOST": "localhost:1",
        }

    def put(self, name, data):
        """Makes or replaces an object as a whole."""
        with self.lock:
            self.objects[name] = (bytes(data), next(self.generations))
            return self.describe(name)

    def describe(self, name):
        """The service's description of an object."""
        data, generation = self.objects[name]
        crc = google_crc32c.value(data).to_bytes(4, "big")
        return {
            "kind": "storage#object",
            "bucket": NAME,
            "name": name,
            "size": str(len(data)),
            "generation": str(generation),
            "metageneration": "1",
            "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
            "crc32c": base64.b64encode(crc).decode(),
            "timeCreated": "2026-11-22T00:00:00.000Z",
            "updated": "2026-11-22T00:00:00.000Z",
            "contentType": "application/octet-stream",
        }

    def names(self, folder=""):
        """The names of objects below a folder."""
        return sorted(name for name in list(self.objects) if name.startswith(folder))


def serve():
    """Runs a bucket until the `with` statement ends."""
    return serving.running(Bucket())


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def log_message(self, *_):
        pass

    def do_GET(self):
        name, query = self._asked()
        if name is None:
            return
        if name == "" and "/o" in self.path:
            self._list(query)
        elif name == "":
            self._json({"kind": "storage#bucket", "name": NAME, "id": NAME})
        elif name not in self.server.objects:
            self._json({"error": {"code": 404, "message": f"No such object: {name}"}}, 404)
        elif query.get("alt") == "media":
            self._send_object(name)
        else:
            self._json(self.server.describe(name))

    def do_POST(self):
        # Before it is answered, also if refused: the next request comes after it.
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name, query = self._asked()
        if name is None:
            return
        if "upload_id" in query:
            self._continue(query, body)
            return
        copy = re.fullmatch(rf"(.+)/rewriteTo/b/{NAME}/o/(.+)", name)
        if copy:
            source, target = copy[1], urllib.parse.unquote(copy[2])
            if source not in self.server.objects:
                self._json({"error": {"code": 404, "message": "No such object"}}, 404)
                return
            stored = self.server.put(target, self.server.objects[source][0])
            self._json({"done": True, "resource": stored})
            return
        if query.get("uploadType") == "resumable":
            number = str(next(self.server.generations))
            self.server.uploads[number] = (query["name"], bytearray())
            place = f"{self.server.address}/upload/storage/v1/b/{NAME}/o?upload_id={number}"
            self._json({}, headers={"Location": place})
            return
        if query.get("uploadType") == "multipart":
            kind = self.headers["Content-Type"]
            mark = b"--" + kind.partition("boundary=")[2].strip('"').encode()
            _, about, content = body.split(mark, 2)
            name = json.loads(about.partition(b"\n\n")[2])["name"]
            data = content.partition(b"\n\n")[2]
            data = data[: data.rindex(b"\n" + mark)]
        else:
            assert query.get("uploadType") == "media", self.path
            name, data = query["name"], body
        with self.server.lock:
            if self._is_not(query, name):
                return
            self._json(self.server.put(name, data))

    def _continue(self, query, body):
        name, parts = self.server.uploads[query["upload_id"]]
        parts += body
        if self.headers["Content-Range"].endswith("/*"):  # there is more to come
            self._json({}, 308, headers={"Range": f"bytes=0-{len(parts) - 1}"})
        else:
            self._json(self.server.put(name, parts))

    def do_DELETE(self):
        name, query = self._asked()
        if name is None:
            return
        with self.server.lock:
            if self._is_not(query, name):
                return
            if self.server.objects.pop(name, None) is None:
                self._json({"error": {"code": 404, "message": f"No such object: {name}"}}, 404)
                return
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _is_not(self, query, name):
        """Whether an object is not of the generation asked for, which is then answered."""
        wanted = query.get("ifGenerationMatch")
        has = self.server.objects.get(name, (b"", 0))[1]
        if wanted is None or int(wanted) == has:
            return False
        self._json({"error": {"code": 412, "message": "Precondition Failed"}}, 412)
        return True

    def _asked(self):
        """The object's name (empty: none) and the query; None where it was answered."""
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        match = OBJECT.fullmatch(parts.path)
        name = urllib.parse.unquote(match[2] or "") if match else ""
        self.server.requests.append((self.command, name or query.get("name", "")))
        status = self.server.failing(self.command, name or query.get("name", ""))
        if match is None or urllib.parse.unquote(match[1]) != NAME:
            status = 404
        if status:
            self._json({"error": {"code": status, "message": f"refused with {status}"}}, status)
            return None, query
        return name, query

    def _list(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        start = query.get("startOffset", "")
        items, prefixes = [], set()
        with self.server.lock:
            for name in self.server.names(prefix):
                if name < start or name >= query.get("endOffset", "\U0010ffff"):
                    continue
                head, found, _ = name[len(prefix) :].partition(delimiter or "\0")
                if found:
                    prefixes.add(prefix + head + delimiter)
                else:
                    items.append(self.server.describe(name))
        self._json({"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)})

    def _send_object(self, name):
        data, generation = self.server.objects[name]
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        first, last = 0, len(data) - 1
        if asked:
            first = int(asked[1]) if asked[1] else max(len(data) - int(asked[2]), 0)
            last = min(int(asked[2]), last) if asked[1] and asked[2] else last
            if first >= len(data):
                self._json({"error": {"code": 416, "message": "range"}}, 416)
                return
        part = data[first : last + 1]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("X-Goog-Generation", str(generation))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def _json(self, value, status=200, headers=None):
        text = json.dumps(value).encode()
        self.send_response(status)
        for key, header in (headers or {}).items():
            self.send_header(key, header)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
