# One image for the service, its migrations and its workers, with GPUs and without.
#
#   docker build --tag tuner .
#   docker build --tag tuner --build-arg TORCH_INDEX=URL .     without CUDA's libraries, a third of
#                       the size: URL is the index of torch's builds for CPUs, which its site names
#
# requirements/torch-cpu.txt has the hashes of torch's CPU builds for x86-64 and Python 3.11 to 3.13;
# another processor needs `make lock ARGS="--torch-index URL"` before.

ARG PYTHON=3.11.14

FROM python:${PYTHON}-slim-trixie AS build
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/tuner
WORKDIR /src
COPY requirements requirements
# torch comes first: it is the large part, and its builds for CPUs have an index of their own,
# which bring the programs that test it in C++, 130 MB.
RUN if [ -n "$TORCH_INDEX" ]; then index="--index-url $TORCH_INDEX"; build=torch-cpu; else build=cuda; fi \
    && /opt/tuner/bin/pip install --no-deps --require-hashes $index -r requirements/$build.txt \
    && cd /opt/tuner/lib/python3*/site-packages/torch && rm -rf test bin/test_* bin/*Test
RUN /opt/tuner/bin/pip install --no-deps --require-hashes -r requirements/product.txt
COPY . .
RUN /opt/tuner/bin/pip install --no-deps --require-hashes -r requirements/build.txt \
    && /opt/tuner/bin/pip install --no-deps --no-build-isolation .

FROM python:${PYTHON}-slim-trixie
# adamw_8bit compiles its step, for which torch calls a compiler. The base image has no bytecode of
# Python's own modules, and nothing can be written here later: every process would compile them.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && python -m compileall -q -x site-packages /usr/local/lib/python3* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp/home tuner
COPY --from=build /opt/tuner /opt/tuner
# /tmp is all that a process writes to, beside its database: the rest may be read-only.
ENV PATH=/opt/tuner/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/tmp/cache
USER 10001:10001
WORKDIR /tmp
EXPOSE 8765
ENTRYPOINT ["tuner"]
CMD ["--help"]
