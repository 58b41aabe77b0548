# The gateway, without torch:
#   docker build --file deploy/docker/gateway.Dockerfile --tag headrace-gateway .
ARG PYTHON=3.12.12-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Block hashes are C.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /build
RUN python -m venv /opt/headrace
# What it depends on changes less often than itself, and is a layer of its own.
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE constraints.txt ./
COPY src/headrace/__init__.py src/headrace/_version.py src/headrace/_lazy.py src/headrace/
COPY src/headrace/_native src/headrace/_native
RUN /opt/headrace/bin/pip install --constraint constraints.txt ".[kubernetes,kv-events,redis,otel]"
COPY src src
RUN /opt/headrace/bin/pip install --no-deps --force-reinstall .

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="headrace-gateway" \
      org.opencontainers.image.description="A token-aware gateway in front of LLM engines" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 65532 --user-group --create-home headrace
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /home/headrace
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["headrace"]
CMD ["gateway", "--help"]
