# An image with Python, torch and this package, from the wheel of ./dev wheel:
#
#   ./dev wheel
#   docker build --tag accelerate .
#
# PyPI's torch contains CUDA's libraries, so the same image trains on the CPU and, with
# NVIDIA's container toolkit, on GPUs. To start from a CUDA image, make a wheel for its
# Python (3.12 in Ubuntu 24.04), and name both:
#
#   ACCELERATE_PYTHON=python3.12 ./dev wheel
#   docker build --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 --tag accelerate .
#
# PIP_INDEX_URL chooses another index, for example one with a torch without CUDA.
ARG BASE=debian:12-slim
FROM ${BASE}
ARG TORCH=2.15.0
ARG PIP_INDEX_URL
# openssh-client starts launchers on other machines; procps and binutils are for
# accelerate doctor.
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils ca-certificates openssh-client procps python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY dist/accelerate-*.whl /tmp/wheels/
# The wheel for this Python: a folder may hold several.
RUN tag=$(python -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")') \
    && pip install --no-cache-dir "torch==$TORCH" numpy /tmp/wheels/accelerate-*-"$tag"-*.whl \
    && rm -rf /tmp/wheels \
    && accelerate --version
RUN useradd --create-home --uid 1000 trainer
USER trainer
WORKDIR /home/trainer
CMD ["accelerate", "--help"]
