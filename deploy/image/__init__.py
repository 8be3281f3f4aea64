"""deploy.image: the container images `notary` and `notary-spark`, built from one `Containerfile` by buildah, podman or docker.

All installed packages are pinned by hashes (`requirements/worker.txt`, `spark.txt`, and `build.txt` for the pip and setuptools that build
wheels). This package first fetches and builds everything into a context, so the builder needs no network.

    python -P -m deploy.image build --base IMAGE      # both images; --image for one of them
    python -P -m deploy.image fetch                   # for tests: Debian's buildah, and a base made of Debian packages
"""
