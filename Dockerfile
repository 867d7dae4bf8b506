# syntax=docker/dockerfile:1
# Two targets: `cpu` (API, housekeeping and CPU workers) and `gpu` (workers on NVIDIA devices).
#   docker build --target cpu -t headrace:cpu .
#   docker build --target gpu -t headrace:gpu .
# The version that the test suite runs on, and that the pins were made with.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS base
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

FROM base AS wheel
WORKDIR /src
RUN pip install build
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY api api
COPY cli cli
COPY migrations migrations
COPY models models
COPY workers workers
RUN python -m build --wheel --outdir /dist

# Dependencies first: they change less often than the code, so that a rebuild is quick.
FROM base AS cpu-environment
RUN python -m venv /opt/headrace
COPY requirements /requirements
RUN /opt/headrace/bin/pip install -r /requirements/cpu.txt
COPY --from=wheel /dist /dist
RUN /opt/headrace/bin/pip install --no-deps /dist/*.whl

# onnxruntime-gpu brings CUDA and cuDNN as wheels; the host gives only the driver. The plain onnxruntime must not be
# in the same environment: the two overwrite each other's files.
FROM base AS gpu-environment
RUN python -m venv /opt/headrace
COPY requirements /requirements
RUN /opt/headrace/bin/pip install -r /requirements/base.txt
COPY --from=wheel /dist /dist
# cpu.txt as a constraint: NumPy, Pillow and tokenizers at the same versions, without its onnxruntime.
RUN wheel=$(echo /dist/*.whl) && /opt/headrace/bin/pip install --constraint /requirements/cpu.txt "${wheel}[gpu]"

FROM base AS runtime
RUN useradd --uid 10001 --user-group --home-dir /data --no-create-home headrace \
    && install -d -o headrace -g headrace /data
ENV PATH=/opt/headrace/bin:$PATH HEADRACE_DATA_DIR=/data HEADRACE_LOG_FORMAT=json
USER headrace
WORKDIR /data
VOLUME /data
EXPOSE 8080
# The process gets SIGTERM itself, so that a worker can finish its batch.
STOPSIGNAL SIGTERM
ENTRYPOINT ["headrace"]
CMD ["--help"]

FROM runtime AS gpu
COPY --from=gpu-environment /opt/headrace /opt/headrace

FROM runtime AS cpu
COPY --from=cpu-environment /opt/headrace /opt/headrace
