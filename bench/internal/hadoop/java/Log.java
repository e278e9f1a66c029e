import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.log4j.AppenderSkeleton;
import org.apache.log4j.Level;
import org.apache.log4j.Logger;
import org.apache.log4j.spi.LoggingEvent;

/** What Hadoop's classes log. */
final class Log extends AppenderSkeleton {
  private static final Log LOG = new Log();

  private final List<String> kept = new ArrayList<>();

  private Log() {}

  static void register(Map<String, Judge.Command> commands) {
    // log.keep LOGGER: from now on everything from INFO on is kept; what was kept is forgotten
    commands.put("log.keep", (a, r) -> {
      Logger l = Logger.getLogger(a[1]);
      l.setLevel(Level.INFO);
      l.setAdditivity(false); // to standard error goes what was asked for there
      l.removeAppender(LOG);
      l.addAppender(LOG);
      synchronized (LOG) {
        LOG.kept.clear();
      }
    });
    // log.await MILLISECONDS REGEX (hex text): waits for a message with a match, and forgets all up
    // to it; the message
    commands.put("log.await", (a, r) -> r.add(Judge.hexText(
        LOG.await(Long.parseLong(a[1]), Pattern.compile(Judge.text(a[2]))))));
  }

  @Override
  protected synchronized void append(LoggingEvent e) {
    StringBuilder s = new StringBuilder(e.getRenderedMessage());
    if (e.getThrowableInformation() != null) {
      for (Throwable t = e.getThrowableInformation().getThrowable(); t != null; t = t.getCause()) {
        s.append(": ").append(t);
      }
    }
    kept.add(s.toString());
    notifyAll();
  }

  private synchronized String await(long milliseconds, Pattern p) throws Exception {
    long end = System.nanoTime() + milliseconds * 1_000_000;
    for (int i = 0;; i++) {
      while (i == kept.size()) {
        long left = (end - System.nanoTime()) / 1_000_000;
        if (left <= 0) {
          throw new IOException("nobody logs " + p + ", but " + kept);
        }
        wait(left);
      }
      String s = kept.get(i);
      if (p.matcher(s).find()) {
        kept.subList(0, i + 1).clear();
        return s;
      }
    }
  }

  @Override
  public void close() {}

  @Override
  public boolean requiresLayout() {
    return false;
  }
}
