class KazooState:
    SUSPENDED: str
    CONNECTED: str
    LOST: str

class KeeperState:
    CONNECTED: str
    CONNECTING: str
