# A server for one bundle, without torch. This file has not been built by our CI, which has no Docker.
#
#   docker build -t toprune-serve .
#   docker run --rm -p 8080:8080 -v "$PWD/pruned:/bundle:ro" -e TOPRUNE_API_KEY toprune-serve
FROM python:3.13-slim

RUN useradd --create-home --uid 10001 toprune
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir '/src[serve]' && rm -rf /src
USER 10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=2)"]
# exec form: SIGTERM reaches the server, which finishes what it has accepted
ENTRYPOINT ["toprune", "serve", "--host", "0.0.0.0", "--port", "8080"]
CMD ["model=/bundle"]
