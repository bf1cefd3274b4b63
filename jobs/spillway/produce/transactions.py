"""Sending in transactions: what is sent between `begin` and `commit` is there, or none of it.

Model: of one transactional id the producer that began last works. `begin_session` ends whatever an
earlier one had open, and waits until that is over; from then on the earlier one's commits are
refused. So what is read after it, under `read_committed`, is the last word.

Failure paths: after any error the sender is of no use any more. Close it and make another one: its
`begin_session` aborts what this one left open, or completes a commit whose answer was lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from spillway.kafka.client import KafkaUnavailable, told
from spillway.kafka.patience import WAIT_S, within
from spillway.produce.records import PartitionRecords
from spillway.produce.send import Sender
from spillway_schemas.exits import FAILED
from spillway_schemas.secret import Options

ABORT_S = 10.0


class ProducerFenced(RuntimeError):
    """Another producer of the same transactional id has begun: this one ends."""

    exit_code = FAILED


class NotPermitted(RuntimeError):
    """Kafka does not let this user do it; trying again does not help."""

    exit_code = FAILED


class TransactionalSender(Sender):
    """A `Sender` whose batches belong to a transaction. Raises what is said there, too."""

    def __init__(self, bootstrap: str, transactional_id: str, options: Options | None = None):
        """Connect. Raises KafkaUnavailable."""
        super().__init__(
            bootstrap, options, client_id=transactional_id, transactional_id=transactional_id
        )
        self._id = transactional_id
        # A producer that another one has fenced would ask for a new epoch, and so fence that one.
        self._producer._transaction_manager._supports_epoch_bump = lambda: False

    def begin_session(self) -> None:
        """Fence earlier producers of this id, and end their transaction.

        Raises ProducerFenced, NotPermitted, KafkaUnavailable.
        """
        self._do(self._producer.init_transactions, "Kafka began no transaction")

    def begin(self) -> None:
        """Begin a transaction. Raises as `begin_session` does."""
        self._do(self._producer.begin_transaction, "Kafka began no transaction")

    def send(self, topic: str, batch: PartitionRecords) -> None:
        """Hand over one batch, which belongs to the transaction. Raises as `begin_session` does."""
        from kafka.errors import KafkaError

        try:
            super().send(topic, batch)
        except KafkaError as error:
            raise self._not_written(error) from error

    def commit(self) -> None:
        """Make what was sent since `begin` visible, all of it. Raises as `begin_session` does: of
        KafkaUnavailable nobody can say whether it is."""
        self.flush()
        self._do(
            self._producer.commit_transaction, "Kafka did not say whether it has committed the rows"
        )

    def abort(self) -> None:
        """Take back what was sent since `begin`. Where that fails Kafka does so, in some minutes,
        or the next `begin_session`."""
        from kafka.errors import KafkaError

        with contextlib.suppress(KafkaError, OSError):
            within(self._producer.abort_transaction, ABORT_S)

    def _do(self, act: Callable[[], object], what: str) -> None:
        from kafka.errors import KafkaError

        try:
            within(act, WAIT_S)
        except (KafkaError, OSError) as error:
            raise self._explained(error, what) from error

    def _not_written(self, error: Exception) -> Exception:
        return self._explained(error, "Kafka did not take the rows")

    def _explained(self, error: Exception, what: str) -> Exception:
        from kafka import errors

        # What comes after a fatal error only says that there was one.
        first = self._producer._transaction_manager.last_error or error
        said = told(first, self._options)
        if isinstance(first, errors.ProducerFencedError | errors.InvalidProducerEpochError):
            return ProducerFenced(
                f"{what}: another producer of the transactional id {self._id!r} has begun, and "
                "goes on instead of this one. Run one at a time"
            )
        if isinstance(first, errors.TopicAuthorizationFailedError):
            names = first.args[0] if first.args else ()
            topics = names if isinstance(names, str) else ", ".join(sorted(names))
            return NotPermitted(f"{what} ({said}): grant this user Write on topic {topics}")
        if isinstance(first, errors.TransactionalIdAuthorizationFailedError):
            return NotPermitted(
                f"{what} ({said}): grant this user Write on the transactional id {self._id!r}"
            )
        if isinstance(first, errors.ClusterAuthorizationFailedError):
            return NotPermitted(f"{what} ({said}): grant this user IdempotentWrite on the cluster")
        return KafkaUnavailable(f"{what} ({said})", "see that the cluster takes transactions")
