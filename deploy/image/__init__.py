"""The container image, made from Debian's Python and our wheel without Docker: `python -m deploy.image`.

`debian` has the packages, `contents` what an image holds, `oci` how it is written down, `cached` what is made once.
"""
