"""A module that starts a thread when it is imported, as no module of the platform may."""

import threading
import time

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
