"""What pyproject.toml cannot say: the extension, and where the config files stand."""

import setuptools

# Decodes parts of JPEGs; it takes a compiler and libjpeg-turbo's headers (Debian and Ubuntu:
# libjpeg62-turbo-dev, libjpeg-turbo8-dev). Where they are not, OpenCV decodes whole images.
DECODER = setuptools.Extension(
    "vit_jax.data.jpeg._jpeg",
    ["vit_jax/data/jpeg/_jpeg.c"],
    depends=["vit_jax/data/jpeg/_huffman.h"],
    libraries=["jpeg"],
    py_limited_api=True,
    optional=True,
)

setuptools.setup(
    # The config files stand at the top of the checkout and travel inside the package.
    packages=["vit_jax.configs", *setuptools.find_packages(include=["vit_jax", "vit_jax.*"])],
    package_dir={"vit_jax.configs": "configs"},
    ext_modules=[DECODER],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel for every later version too
)
