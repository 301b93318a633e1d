/* A client of a database, for mount_sqlite.rs. scripts/fetch-sqlite builds it together with SQLite.
 *
 * client run DATABASE TRANSACTIONS   Moves amounts between accounts. Prints the number of each transaction once its
 *                                    COMMIT has returned, and at the end how SQLite wrote: the numbers of atomic
 *                                    writes that were started, committed and aborted, and of journals.
 * client check DATABASE              Checks the database. Prints the number of the last transaction.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include "sqlite3.h"

enum { ACCOUNTS = 400, AMOUNT = 1000, MOVES = 12 };

static long started, committed, aborted, journals;

/* SQLite's call of ioctl(2), counted. */
static int counted_ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    int result = ioctl(fd, request, argument);
    started += request == 0xf501 && result == 0;
    committed += request == 0xf502 && result == 0;
    aborted += request == 0xf505;
    return result;
}

/* SQLite's call of open(2), which counts new journals. */
static int counted_open(const char *path, int flags, int mode) {
    const char *dash = strrchr(path, '-');
    journals += dash && !strcmp(dash, "-journal") && (flags & O_CREAT);
    return open(path, flags, mode);
}

static void fail(sqlite3 *database, const char *what) {
    fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(database));
    exit(1);
}

static void execute(sqlite3 *database, const char *statement) {
    if (sqlite3_exec(database, statement, NULL, NULL, NULL) != SQLITE_OK)
        fail(database, statement);
}

static void text_of(sqlite3 *database, const char *query, char *text, size_t size) {
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(database, query, -1, &statement, NULL) != SQLITE_OK)
        fail(database, query);
    if (sqlite3_step(statement) != SQLITE_ROW)
        fail(database, query);
    snprintf(text, size, "%s", (const char *)sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
}

static long number_of(sqlite3 *database, const char *query) {
    char text[64];
    text_of(database, query, text, sizeof text);
    return atol(text);
}

static void create(sqlite3 *database) {
    execute(database, "BEGIN");
    execute(database, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, amount INTEGER, note BLOB)");
    execute(database, "CREATE TABLE transactions (number INTEGER PRIMARY KEY, note BLOB)");
    char statement[128];
    for (int account = 0; account < ACCOUNTS; account++) {
        snprintf(statement, sizeof statement,
                 "INSERT INTO accounts VALUES (%d, %d, randomblob(600))", account, AMOUNT);
        execute(database, statement);
    }
    execute(database, "COMMIT");
}

/* Moves amounts, so that many pages change, and their sum does not. Some transactions are rolled back. */
static void move_amounts(sqlite3 *database, long number) {
    char statement[160];
    execute(database, "BEGIN");
    for (int move = 0; move < MOVES; move++) {
        int from = rand() % ACCOUNTS, to = rand() % ACCOUNTS;
        snprintf(statement, sizeof statement,
                 "UPDATE accounts SET amount = amount - 1, note = randomblob(600) WHERE id = %d", from);
        execute(database, statement);
        snprintf(statement, sizeof statement,
                 "UPDATE accounts SET amount = amount + 1 WHERE id = %d", to);
        execute(database, statement);
    }
    snprintf(statement, sizeof statement,
             "INSERT INTO transactions VALUES (%ld, randomblob(%d))", number, rand() % 3000);
    execute(database, statement);
    if (rand() % 8 == 0) {
        execute(database, "ROLLBACK");
        move_amounts(database, number);
    } else {
        execute(database, "COMMIT");
    }
}

static long last_transaction(sqlite3 *database) {
    return number_of(database, "SELECT coalesce(max(number), 0) FROM transactions");
}

static void check(sqlite3 *database) {
    char text[256];
    text_of(database, "PRAGMA integrity_check", text, sizeof text);
    long sum = number_of(database, "SELECT sum(amount) FROM accounts");
    long count = number_of(database, "SELECT count(*) FROM transactions");
    if (strcmp(text, "ok") || sum != ACCOUNTS * AMOUNT || count != last_transaction(database)) {
        fprintf(stderr, "%s, %ld in all accounts, %ld transactions, the last one %ld\n", text, sum,
                count, last_transaction(database));
        exit(1);
    }
    printf("%ld\n", count);
}

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    if (vfs->xSetSystemCall(vfs, "ioctl", (sqlite3_syscall_ptr)counted_ioctl) != SQLITE_OK ||
        vfs->xSetSystemCall(vfs, "open", (sqlite3_syscall_ptr)counted_open) != SQLITE_OK)
        return 2;
    sqlite3 *database;
    if (sqlite3_open(arguments[2], &database) != SQLITE_OK)
        fail(database, "opening");
    /* The first transaction of a new database has a journal. With FULL, the default, SQLite does not make its removal
     * durable: the next commit must not be durable without it, or the journal would come back, and be rolled back. */
    execute(database, "PRAGMA synchronous = FULL");
    if (!strcmp(arguments[1], "check")) {
        check(database);
        return 0;
    }
    if (!number_of(database, "SELECT count(*) FROM sqlite_master"))
        create(database);
    long first = last_transaction(database) + 1;
    srand((unsigned)first);
    for (long number = first; number < first + atol(arguments[3]); number++) {
        move_amounts(database, number);
        printf("%ld\n", number);
        fflush(stdout);
    }
    sqlite3_close(database);
    printf("started %ld committed %ld aborted %ld journals %ld\n", started, committed, aborted,
           journals);
    return 0;
}
