"""Answers dry-run requests as the dry-run program does, without torch.

python -P stand_in_dry.py ok|wait [options of the program, which are passed over]
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.records import dry_trace

for line in sys.stdin:
    request = json.loads(line)
    if sys.argv[1] == "ok":  # else: until standard input is closed, as any program that reads it
        print(json.dumps({"id": request["id"], "trace": dry_trace(request)}), flush=True)
