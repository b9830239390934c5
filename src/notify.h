#ifndef LAGUNA_NOTIFY_H
#define LAGUNA_NOTIFY_H

/* Tell systemd how the service is: "READY=1", "STATUS=..".  path: of $NOTIFY_SOCKET, NULL where
 * nobody listens.  Never blocks; what cannot be said is not. */
void notify(const char *path, const char *state);

#endif
