"""Methods: how a plan is found. Each is a frozen dataclass in a file that reads like its paper; its
fields are the method's settings."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from toprune.errors import UserError
from toprune.methods.adapler import AdapLeR
from toprune.methods.baselines import Calibrate, Random, Truncate
from toprune.methods.cofi.cofi import Cofi
from toprune.methods.drop_layers import DropLayers
from toprune.methods.joint import Joint
from toprune.methods.lat import Lat
from toprune.methods.lot import Lot
from toprune.methods.ltp import Ltp
from toprune.methods.pool import Pool
from toprune.methods.power_bert import PowerBert
from toprune.methods.spatten import SpAtten
from toprune.methods.top import Top
from toprune.methods.tr_bert import TrBert
from toprune.methods.transkimmer import Transkimmer
from toprune.training.job import Method

METHODS: dict[str, Any] = {
    method.NAME: method
    for method in (
        Top,
        PowerBert,
        Ltp,
        Lat,
        SpAtten,
        Transkimmer,
        TrBert,
        AdapLeR,
        Lot,
        Calibrate,
        Random,
        Truncate,
        Pool,
        DropLayers,
        Cofi,
        Joint,
    )
}


def make_method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """Make the method of that name. Settings that it does not have are refused."""
    if name not in METHODS:
        raise UserError(f"method '{name}' is not known; there are: {', '.join(METHODS)}")
    names = [field.name for field in fields(METHODS[name])]
    unknown = [key for key in settings or {} if key not in names]
    if unknown:
        raise UserError(
            f"the method {name} has no such setting ({', '.join(unknown)}); "
            f"it has: {', '.join(names) or 'none'}"
        )
    return METHODS[name](**(settings or {}))
