"""A bucket of S3 on this machine, to read from: s3fs takes it for the real one."""

import hashlib
import http.server
import urllib.parse
from xml.sax.saxutils import escape

import serving

NAME = "bucket"
ENTRY = (
    "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;{tag}&quot;</ETag>"
    "<LastModified>2026-11-22T00:00:00.000Z</LastModified></Contents>"
)


class Bucket(http.server.ThreadingHTTPServer):
    """The server; `objects` are what it holds."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)  # of a name, s3fs would ask bucket.NAME
        self.objects = {}  # name: bytes
        self.refusing = False

    @property
    def environment(self):
        """The variables that send a process here."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server_port}",
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(self, name, data):
        """Makes or replaces an object."""
        self.objects[name] = bytes(data)


def serve():
    """Runs a bucket until the `with` statement ends."""
    return serving.running(Bucket())


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        bucket, _, name = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
        if self.server.refusing:
            self._fail(403, "AccessDenied")
        elif bucket != NAME:
            self._fail(404, "NoSuchBucket")
        elif "list-type" in query:
            self._list(query.get("prefix", ""), query.get("delimiter"))
        elif name in self.server.objects:
            data = self.server.objects[name]
            self._answer(200, data, {"ETag": f'"{_tag(data)}"'})
        else:
            self._fail(404, "NoSuchKey")

    def _list(self, prefix, delimiter):
        found, folders = [], set()
        for name, data in sorted(self.server.objects.items()):
            if name.startswith(prefix):
                folder, inside, _ = name[len(prefix) :].partition(delimiter or "\0")
                if inside:
                    folders.add(f"{prefix}{folder}{delimiter}")
                else:
                    found.append(ENTRY.format(key=escape(name), size=len(data), tag=_tag(data)))
        found += [f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in folders]
        text = f"<ListBucketResult><Name>{NAME}</Name>{''.join(found)}</ListBucketResult>"
        self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _fail(self, status, code):
        text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self._answer(status, text.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status, data, headers):
        self.send_response(status)
        for key, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _tag(data):
    return hashlib.md5(data).hexdigest()
