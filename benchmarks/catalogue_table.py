"""The catalogue's table: what every model's row says, and the figures over all of them."""
from __future__ import annotations
import json
from pathlib import Path
from typing import Any
Row = dict[str, Any]
PAGE = Path(__file__).parent / "catalogue.md"

def line(row: Row) -> str:
    return f"{row['library']}.{row['name']} {row['exporter']} {row.get('size')} {row['wall']} | {row.get('unbuildable')} | ours {({k:v for k,v in row.get('ours',{}).items() if k not in ('notes',)})} | plain {row.get('plain')} | unread {len(row.get('unread',()))} {row.get('unread',())[:3]}"

def write(folder: Path) -> None:
    pass
