"""GPUs as numbers: their limits, rates and gaps with sources, and the occupancy calculator."""

from tileprof.devices.catalogue import get, names, of_driver
from tileprof.devices.device import RATES, Device
from tileprof.devices.occupancy import Occupancy, occupancy

__all__ = ["RATES", "Device", "Occupancy", "get", "names", "occupancy", "of_driver"]
