/* Connections to other machines, which a rehearsal refuses in whatever language they are asked for. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "standin.h"

static int is_elsewhere(const struct sockaddr *address) {
    if (address->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24) != 127;
    if (address->sa_family != AF_INET6) return 0;
    const struct in6_addr *ip = &((const struct sockaddr_in6 *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(ip)) return ip->s6_addr[12] != 127;
    return !IN6_IS_ADDR_LOOPBACK(ip);
}

__attribute__((visibility("default"))) int connect(
    int socket, const struct sockaddr *address, socklen_t size
) {
    if (option("NETWORK", NULL) && address && is_elsewhere(address)) {
        errno = ENETUNREACH;
        return -1;
    }
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    return real(socket, address, size);
}
