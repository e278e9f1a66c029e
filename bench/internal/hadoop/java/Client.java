import java.io.ByteArrayInputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.BlockReader;
import org.apache.hadoop.hdfs.DFSClient;
import org.apache.hadoop.hdfs.DFSInputStream;
import org.apache.hadoop.hdfs.DFSUtilClient;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.PeerCache;
import org.apache.hadoop.hdfs.client.HdfsDataOutputStream;
import org.apache.hadoop.hdfs.client.impl.BlockReaderRemote;
import org.apache.hadoop.hdfs.net.Peer;
import org.apache.hadoop.hdfs.protocol.ClientProtocol;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.hdfs.protocol.ExtendedBlock;
import org.apache.hadoop.hdfs.protocol.HdfsFileStatus;
import org.apache.hadoop.hdfs.protocol.LastBlockWithStatus;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.apache.hadoop.hdfs.protocol.LocatedBlocks;
import org.apache.hadoop.hdfs.security.token.block.BlockTokenIdentifier;
import org.apache.hadoop.hdfs.server.datanode.CachingStrategy;
import org.apache.hadoop.net.NetUtils;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.util.DataChecksum;

/** Hadoop's client, before datanodes of ours and a name node that is a stub. */
final class Client {
  private Client() {}

  private static final String POOL = "BP-1-127.0.0.1-1";

  /** Connections that BlockReaderRemote left in a state to be used again. */
  private static final PeerCache PEERS = new PeerCache(16, 60_000);

  private static final NameNode NAME_NODE = new NameNode();
  private static DFSClient client;
  private static HdfsDataOutputStream out;

  /** A file, as the stub of a name node knows it. */
  private static final class Inode {
    long id;
    short replication;
    long blockSize;
    final List<ExtendedBlock> blocks = new ArrayList<>();

    long length() {
      long n = 0;
      for (ExtendedBlock b : blocks) {
        n += b.getNumBytes();
      }
      return n;
    }

    HdfsFileStatus status() {
      return new HdfsFileStatus.Builder().length(length()).isdir(false).replication(replication)
          .blocksize(blockSize).fileId(id).perm(FsPermission.getFileDefault()).build();
    }
  }

  /** Answers what a client asks a name node. All blocks are on the same nodes. */
  private static final class NameNode implements InvocationHandler {
    DatanodeInfo[] nodes;
    DatanodeInfo[] spares = DatanodeInfo.EMPTY_ARRAY; // for pipelines that have lost a node
    ExtendedBlock next; // the next block of any file; null: one with an id of its own
    private final Map<String, Inode> files = new HashMap<>();
    private long nextId = 1 << 30;
    private long nextStamp = 1001;

    @Override
    public synchronized Object invoke(Object proxy, Method m, Object[] a) throws Throwable {
      switch (m.getName()) {
        case "getServerDefaults":
          return new FsServerDefaults(1 << 20, 512, 65536, (short) 1, 4096, false, 0L,
              DataChecksum.Type.CRC32C);
        case "create": {
          Inode f = new Inode();
          f.id = ++nextId;
          f.replication = (Short) a[5];
          f.blockSize = (Long) a[6];
          files.put((String) a[0], f);
          return f.status();
        }
        case "getFileInfo": {
          Inode f = files.get(a[0]);
          return f == null ? null : f.status();
        }
        case "addBlock": {
          Inode f = files.get(a[0]);
          report((ExtendedBlock) a[2]);
          ExtendedBlock b = next != null ? next
              : new ExtendedBlock(POOL, ++nextId, 0, ++nextStamp);
          next = null;
          f.blocks.add(b);
          return located(b, 0);
        }
        case "abandonBlock":
          files.get(a[2]).blocks.remove((ExtendedBlock) a[0]);
          return null;
        case "complete":
          report((ExtendedBlock) a[2]);
          return true;
        case "fsync":
        case "renewLease":
        case "close":
          return null;
        case "getBlockLocations": {
          Inode f = files.get(a[0]);
          List<LocatedBlock> all = new ArrayList<>();
          long at = 0;
          long start = (Long) a[1];
          long length = (Long) a[2];
          for (ExtendedBlock b : f.blocks) {
            if (at + b.getNumBytes() > start && at - start < length) {
              all.add(located(b, at));
            }
            at += b.getNumBytes();
          }
          return new LocatedBlocks(at, false, all, all.isEmpty() ? null : all.get(all.size() - 1),
              true, null, null);
        }
        case "append": {
          Inode f = files.get(a[0]);
          ExtendedBlock last = f.blocks.get(f.blocks.size() - 1);
          boolean full = last.getNumBytes() == f.blockSize;
          return new LastBlockWithStatus(
              full ? null : located(last, f.length() - last.getNumBytes()), f.status());
        }
        case "updateBlockForPipeline": {
          ExtendedBlock b = new ExtendedBlock((ExtendedBlock) a[0]);
          b.setGenerationStamp(++nextStamp);
          return located(b, 0);
        }
        case "getAdditionalDatanode": {
          DatanodeInfo[] existing = (DatanodeInfo[]) a[3];
          DatanodeInfo[] all = Arrays.copyOf(existing, existing.length + 1);
          all[existing.length] = spares[0];
          return located((ExtendedBlock) a[2], all, 0);
        }
        case "updatePipeline":
          report((ExtendedBlock) a[2]);
          return null;
        default:
          throw new UnsupportedOperationException(m.getName());
      }
    }

    /** Takes over length and stamp of a block. */
    private void report(ExtendedBlock b) {
      if (b == null) {
        return;
      }
      for (Inode f : files.values()) {
        for (ExtendedBlock known : f.blocks) {
          if (known.getBlockId() == b.getBlockId()) {
            known.setNumBytes(b.getNumBytes());
            known.setGenerationStamp(b.getGenerationStamp());
          }
        }
      }
    }

    private LocatedBlock located(ExtendedBlock b, long offset) {
      return located(b, nodes, offset);
    }

    private LocatedBlock located(ExtendedBlock b, DatanodeInfo[] on, long offset) {
      String[] ids = new String[on.length];
      StorageType[] types = new StorageType[on.length];
      for (int i = 0; i < on.length; i++) {
        ids[i] = "DS-" + on[i].getDatanodeUuid();
        types[i] = StorageType.DISK;
      }
      LocatedBlock l = new LocatedBlock(new ExtendedBlock(b), on, ids, types, offset, false,
          DatanodeInfo.EMPTY_ARRAY);
      l.setBlockToken(new Token<BlockTokenIdentifier>());
      return l;
    }

    synchronized List<ExtendedBlock> blocks(String path) {
      return files.get(path).blocks;
    }
  }

  /** The settings that follow a command's first argument. */
  private static Configuration conf(String[] a) {
    Configuration conf = new HdfsConfiguration();
    for (int i = 2; i < a.length; i++) {
      String[] kv = a[i].split("=");
      conf.set(kv[0], kv[1]);
    }
    return conf;
  }

  /** What client.put writes over and over: a prime number of pieces, so that blocks differ. */
  private static final class Pattern {
    static final int PIECE = 1 << 16;
    static final byte[] BYTES = new byte[61 * PIECE];

    static {
      long x = 88172645463325252L;
      for (int i = 0; i < BYTES.length; i++) {
        x ^= x << 13;
        x ^= x >>> 7;
        x ^= x << 17;
        BYTES[i] = (byte) x;
      }
    }
  }

  static void register(Map<String, Judge.Command> commands) {
    // reader.read NODE POOL ID STAMP NUMBYTES OFFSET LENGTH VERIFY PIECE, by BlockReaderRemote, PIECE
    // bytes at a time: how many bytes came and their SHA-256, and whether a connection was used again
    commands.put("reader.read", (a, r) -> {
      DatanodeInfo node = Ops.nodes(a[1])[0];
      long length = Long.parseLong(a[7]);
      ExtendedBlock b = new ExtendedBlock(Judge.text(a[2]), Long.parseLong(a[3]),
          Long.parseLong(a[5]), Long.parseLong(a[4]));
      BlockReader reader = null;
      boolean again = true;
      while (reader == null) {
        Peer peer = PEERS.get(node, false);
        again = peer != null;
        if (!again) {
          Socket s = NetUtils.getDefaultSocketFactory(new Configuration(false)).createSocket();
          s.connect(new InetSocketAddress(node.getIpAddr(), node.getXferPort()), 60_000);
          s.setSoTimeout(60_000);
          peer = DFSUtilClient.peerFromSocket(s);
        }
        try {
          reader = BlockReaderRemote.newBlockReader("/file", b, new Token<BlockTokenIdentifier>(),
              Long.parseLong(a[6]), length, Boolean.parseBoolean(a[8]), "blockpath-interop", peer,
              node, PEERS, CachingStrategy.newDefaultStrategy(), 0, new Configuration(false));
        } catch (IOException e) {
          peer.close();
          if (!again) { // else the datanode may have closed it meanwhile, being idle
            throw e;
          }
        }
      }
      byte[] data = new byte[(int) length];
      int n;
      try {
        n = 0;
        int piece = Integer.parseInt(a[9]);
        if (piece >= data.length) {
          n = reader.readAll(data, 0, data.length);
        } else { // arrays and buffers in turn
          for (boolean array = true; n < data.length; array = !array) {
            int most = Math.min(piece, data.length - n);
            int got = array ? reader.read(data, n, most)
                : reader.read(ByteBuffer.wrap(data, n, most));
            if (got <= 0) {
              break;
            }
            n += got;
          }
        }
      } finally {
        reader.close();
      }
      r.add(Integer.toString(n));
      r.add(Cluster.sha256(new ByteArrayInputStream(data, 0, Math.max(n, 0))));
      r.add(Boolean.toString(again));
    });
    // client.start NODES [KEY=VALUE]...: a client with these settings
    commands.put("client.start", (a, r) -> {
      if (client != null) {
        client.close();
      }
      NAME_NODE.nodes = Ops.nodes(a[1]);
      ClientProtocol stub = (ClientProtocol) Proxy.newProxyInstance(Client.class.getClassLoader(),
          new Class<?>[] {ClientProtocol.class, Closeable.class}, NAME_NODE);
      client = new DFSClient(null, stub, conf(a), null);
    });
    // client.connect URI [KEY=VALUE]...: a client of a real name node
    commands.put("client.connect", (a, r) -> {
      if (client != null) {
        client.close();
      }
      client = new DFSClient(URI.create(a[1]), conf(a));
    });
    // client.spares NODES: what pipelines that have lost a node are given
    commands.put("client.spares", (a, r) -> NAME_NODE.spares = Ops.nodes(a[1]));
    // client.next BLOCK: what the next block of a file is
    commands.put("client.next", (a, r) -> NAME_NODE.next = new ExtendedBlock(Judge.text(a[1]),
        Long.parseLong(a[2]), 0, Long.parseLong(a[3])));
    // client.byteArrays: the class that manages the client's packet buffers
    commands.put("client.byteArrays", (a, r) -> r.add(
        client.getClientContext().getByteArrayManager().getClass().getSimpleName()));
    // client.create PATH TYPE BPC BLOCKSIZE
    commands.put("client.create", (a, r) -> {
      Options.ChecksumOpt opt = new Options.ChecksumOpt(DataChecksum.Type.valueOf(a[2]),
          Integer.parseInt(a[3]));
      out = client.createWrappedOutputStream(client.create(Judge.text(a[1]),
          FsPermission.getFileDefault(), EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE),
          (short) NAME_NODE.nodes.length, Long.parseLong(a[4]), null, 4096, opt), null);
    });
    commands.put("client.append", (a, r) ->
        out = client.append(Judge.text(a[1]), 4096, EnumSet.of(CreateFlag.APPEND), null, null));
    commands.put("client.write", (a, r) -> out.write(Judge.bytes(a[1])));
    commands.put("client.hflush", (a, r) -> out.hflush());
    commands.put("client.hsync", (a, r) -> out.hsync());
    commands.put("client.close", (a, r) -> out.close());
    // client.blocks PATH: pool, id, stamp and length of each
    commands.put("client.blocks", (a, r) -> {
      for (ExtendedBlock b : NAME_NODE.blocks(Judge.text(a[1]))) {
        r.addAll(List.of(Judge.hexText(b.getBlockPoolId()), "" + b.getBlockId(),
            "" + b.getGenerationStamp(), "" + b.getNumBytes()));
      }
    });
    // client.read PATH: length and SHA-256
    commands.put("client.read", (a, r) -> {
      try (DFSInputStream in = client.open(Judge.text(a[1]))) {
        r.add(Long.toString(in.getFileLength()));
        r.add(Cluster.sha256(in));
      }
    });
    // client.put PATH LENGTH: the pattern in a new file with the defaults of the settings
    commands.put("client.put", (a, r) -> {
      long length = Long.parseLong(a[2]);
      try (OutputStream o = client.create(Judge.text(a[1]), true)) {
        for (long at = 0; at < length; at += Pattern.PIECE) {
          o.write(Pattern.BYTES, (int) (at % Pattern.BYTES.length),
              (int) Math.min(length - at, Pattern.PIECE));
        }
      }
    });
    // client.get PATH: reads all of a file; how many bytes came
    commands.put("client.get", (a, r) -> {
      long length = 0;
      byte[] buf = new byte[Pattern.PIECE];
      try (DFSInputStream in = client.open(Judge.text(a[1]))) {
        for (int n; (n = in.read(buf, 0, buf.length)) >= 0;) {
          length += n;
        }
      }
      r.add(Long.toString(length));
    });
    // client.checksum PATH LENGTH: as cluster.checksum answers
    commands.put("client.checksum", (a, r) -> {
      FileChecksum sum = client.getFileChecksumWithCombineMode(Judge.text(a[1]),
          Long.parseLong(a[2]));
      r.add(sum.getAlgorithmName());
      r.add(Judge.hex(sum.getBytes()));
      r.add(sum.toString());
    });
  }
}
