"""Videos of pictures: MP4 by the ffmpeg of imageio-ffmpeg, GIF by Pillow. Both are in the extra ``video``."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.runtime.loading import load

# A GIF is put together in memory, a quarter of a megabyte a picture; at 30 a second this is 50 s.
GIF_PICTURES_MAX = 1_500
# A step of a GIF takes hundredths of a second, and players slow down below two of them.
GIF_STEP_S_MIN = 0.02


class Video(Protocol):
    """A video while it is written."""

    def add(self, picture: NDArray[np.uint8]) -> None:
        """The next picture, (height, width, 3); all have the same size."""
        ...

    def finish(self) -> None:
        """Write what is left, and free what is held."""
        ...


class Mp4:
    """H.264 in an MP4 file, written while pictures arrive."""

    def __init__(self, path: Path, *, fps: float) -> None:
        self._write_frames = _package("imageio_ffmpeg:write_frames")
        self._path = path
        self._fps = fps
        self._frames: Any = None

    def add(self, picture: NDArray[np.uint8]) -> None:
        """See ``Video``."""
        if self._frames is None:
            height, width = picture.shape[:2]
            # Sizes are rounded to even ones, which the format needs.
            self._frames = self._write_frames(
                str(self._path), (width, height), fps=self._fps, macro_block_size=2
            )
            self._frames.send(None)
        self._frames.send(np.ascontiguousarray(picture))

    def finish(self) -> None:
        """See ``Video``."""
        if self._frames is not None:
            self._frames.close()


class Gif:
    """An animated GIF of at most ``GIF_PICTURES_MAX`` pictures; later ones are left out."""

    def __init__(self, path: Path, *, fps: float) -> None:
        self._image: Any = _package("PIL.Image:Image")
        self._from_array = _package("PIL.Image:fromarray")
        self._path = path
        self._step_s = max(GIF_STEP_S_MIN, 1.0 / fps)
        self._pictures: list[Any] = []

    def add(self, picture: NDArray[np.uint8]) -> None:
        """See ``Video``."""
        if len(self._pictures) < GIF_PICTURES_MAX:
            self._pictures.append(self._from_array(picture).quantize())

    def finish(self) -> None:
        """See ``Video``."""
        if self._pictures:
            first, *others = self._pictures
            first.save(
                self._path, save_all=True, append_images=others, duration=round(1e3 * self._step_s), loop=0
            )


FORMATS: dict[str, Callable[..., Video]] = {".mp4": Mp4, ".gif": Gif}


def check_video(path: Path) -> None:
    """Refuse a name that ends in no format, or in a folder that there is not.

    Raises:
        ConfigError: it does.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"--video {path} names no format", fix=f"let its name end in {' or '.join(FORMATS)}"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"--video {path} is in no folder that exists", fix="make the folder, or name another"
        )


@contextmanager
def video_at(path: Path, *, fps: float) -> Generator[Video]:
    """A video that appears at ``path`` once it is whole.

    Raises:
        NotFoundError: the package that writes it is not installed.
        ConfigError: it cannot be written.
    """
    unfinished = path.with_name(f"{path.stem}.new{path.suffix}")
    video = FORMATS[path.suffix](unfinished, fps=fps)
    try:
        try:
            yield video
        finally:
            video.finish()
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"--video {path} cannot be written", why=str(error)) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _package(target: str) -> Any:
    try:
        return load(target)
    except ImportError as error:
        raise NotFoundError(
            "Videos need imageio-ffmpeg (MP4) or Pillow (GIF)",
            why=str(error),
            fix="install them: pip install 'tidegate[video]'",
        ) from error
