import sys, json, time
from pathlib import Path
from tileprof.record import Options
from tileprof.record.cuda.settings import Settings
from tileprof.record.cuda import record
raw, out, settings, *command = sys.argv[1:]
t = time.time()
code = record(Options(program=tuple(command), output=Path(out), force=True), Settings(raw=Path(raw), **json.loads(settings)))
print("recorded", out, "exit", code, f"{time.time()-t:.1f}s", flush=True)
