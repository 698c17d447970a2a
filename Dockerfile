# The CPU environment and mappa in an image. NOT YET BUILT: where this was written no container could be built; the
# steps are those of `make setup`, which is tested. The sandbox makes user namespaces, which Docker's default seccomp
# profile forbids: compose.yaml starts the worker without that profile.
FROM python:3.11-slim-bookworm

RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /mappa
COPY . .
RUN make setup && .venv/bin/uv cache clean && rm -rf /root/.cache/pip
ENV PATH=/mappa/.venv/bin:$PATH
CMD ["mappa", "--help"]
