"""Tests, in folders that mirror ``ebbtide``'s packages; what is tested in processes that train lies in ``training``."""
