# For machines with NVIDIA GPUs (EXTRA=cuda, the default) or TPUs (EXTRA=tpu); EXTRA=gcs for CPUs.
#
#   docker build --build-arg EXTRA=cuda --tag vit_jax .
#   docker run --gpus=all --shm-size=8g --volume="$PWD:/work" vit_jax train digits
#   docker run --privileged --net=host --volume="$PWD:/work" vit_jax train digits      on a TPU machine

FROM python:3.13-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev libjpeg62-turbo-dev
WORKDIR /source
COPY setup.py pyproject.toml README.md LICENSE ./
COPY configs configs
COPY vit_jax vit_jax
RUN pip wheel --no-cache-dir --no-deps --wheel-dir=/wheels .

FROM python:3.13-slim-bookworm
ARG EXTRA=cuda
RUN apt-get update && apt-get install --yes --no-install-recommends libjpeg62-turbo \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[gcs,$EXTRA]"
WORKDIR /work
ENTRYPOINT ["vit_jax"]
