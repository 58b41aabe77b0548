# The engine with its server, for CUDA and, more slowly, CPUs:
#   docker build --file deploy/docker/engine.Dockerfile --tag headrace-engine .
# For CPUs alone, and three gigabytes less, name the index of PyTorch's CPU wheels:
#   --build-arg TORCH_INDEX=URL
ARG PYTHON=3.12.12-slim-bookworm

FROM python:${PYTHON} AS build
ARG TORCH_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# The CPU kernels are C.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /build
RUN python -m venv /opt/headrace
COPY constraints.txt ./
RUN /opt/headrace/bin/pip install --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY src src
RUN /opt/headrace/bin/pip install --constraint constraints.txt ".[engine,otel]"

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="headrace-engine" \
      org.opencontainers.image.description="An asynchronous LLM engine with OpenAI's API" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 65532 --user-group --create-home headrace
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /home/headrace
EXPOSE 8000 5557 5558
STOPSIGNAL SIGTERM
ENTRYPOINT ["headrace"]
CMD ["serve", "--help"]
